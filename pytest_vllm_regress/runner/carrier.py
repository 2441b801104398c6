"""What runs jobs: an interface, and the carrier that runs them on this machine, in threads.

Ray is another carrier (``on_ray``). The shards of a CI system are a third: each is this machine's carrier with its part of the jobs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import IO, Protocol

from ..cases.results import RunResult
from ..errors import BuildError
from . import runner as runs
from .cell import State
from .journal import Journal
from .runner import Job, Options, Say
from .shards import Seconds, recorded

LOOK_S = 0.2
"""Between two looks at what the jobs have written."""


@dataclasses.dataclass(frozen=True)
class Arrival:
    """What came of a job, or of some of its cells. ``last``: nothing more comes of it. ``node``: where that was, if not here."""

    job: Job
    run: RunResult
    state: State = State.FINISHED
    last: bool = True
    node: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)


class Carrier(Protocol):
    """Runs jobs somewhere. ``journal`` has a place for each job's output, and for what it has finished."""

    def carry(self, jobs: Sequence[Job], options: Options, journal: Journal) -> Generator[Arrival | None, None, None]:
        """What comes of the jobs, as it comes; now and then None, so that output can be shown. Closed early, it ends what still runs."""
        ...


class LocalThreads:
    """Runs jobs in parallel on this machine. One thread builds environments while others run; ``build`` as in ``runs.Runner``.

    The first job begins, then the longest of the others, as far as their lengths are recorded (``seconds``): what begins last is to end soon.
    ``at_once`` jobs (one of several workers counts as that many), and one more where ``spare``, told how many run, says that there is room.
    ``start`` runs a command with its output in a file and returns its status.
    """

    def __init__(
        self,
        build: Callable[[str], None],
        at_once: int,
        say: Say,
        start: Callable[..., int] | None = None,
        spare: Callable[[int], bool] = lambda running: False,
        seconds: Seconds = recorded,
    ) -> None:
        self._build = build
        self._at_once = at_once
        self._spare = spare
        self._seconds = seconds
        self._say = say
        self._start = start or self._start_command
        self._running: set[subprocess.Popen[bytes]] = set()
        self.stopping = threading.Event()

    def carry(self, jobs: Sequence[Job], options: Options, journal: Journal) -> Generator[Arrival | None, None, None]:
        """As ``Carrier``."""
        builder, runner = ThreadPoolExecutor(1, "build"), ThreadPoolExecutor(max(1, len(jobs)), "run")
        pending: dict[Future[Arrival], int] = {}  # and how many workers each has
        cut_off = True
        try:
            waiting = deque(self._by_length(jobs))
            environments = dict.fromkeys(job.environment for job in waiting)
            built = {name: builder.submit(self._guarded_build, name) for name in environments}
            while waiting or pending:
                while waiting and ((busy := sum(pending.values())) < self._at_once or self._spare(busy)):
                    job = waiting.popleft()
                    future = runner.submit(self._job, job, built[job.environment], options, journal)
                    pending[future] = int(job.workers or 1)
                done, _ = wait(pending, LOOK_S, return_when=FIRST_COMPLETED)
                for future in done:
                    del pending[future]
                    yield future.result()
                yield None
            cut_off = False
        except (KeyboardInterrupt, GeneratorExit):
            self._interrupt()
            raise
        finally:
            self.stopping.set()
            builder.shutdown(wait=not cut_off, cancel_futures=True)
            runner.shutdown(wait=True, cancel_futures=True)

    def _by_length(self, jobs: Sequence[Job]) -> list[Job]:
        def length(job: Job) -> float:
            return sum(self._seconds(case, job.environment) for case in job.cases)

        return [*jobs[:1], *sorted(jobs[1:], key=length, reverse=True)]

    def _guarded_build(self, name: str) -> None:
        if not self.stopping.is_set():
            self._build(name)

    def _job(self, job: Job, built: Future[None], options: Options, journal: Journal) -> Arrival:
        try:
            built.result()
        except BuildError as error:
            self._say(f"{job.environment}: {error}")
            return Arrival(job, runs.not_built(job, error, options), State.UNBUILT)
        partial = journal.partial(job)
        partial.parent.mkdir(parents=True, exist_ok=True)
        with journal.log(job).open("wb") as log:
            return Arrival(job, runs.run_job(job, options, lambda *given: self._start(log, *given), partial))

    def _start_command(self, log: IO[bytes], command: Sequence[str], environment: Mapping[str, str]) -> int:
        process = runs.start_command(command, environment, output=log)
        self._running.add(process)
        try:
            if self.stopping.is_set():
                process.send_signal(signal.SIGINT)
            return process.wait()
        finally:
            self._running.discard(process)

    def _interrupt(self) -> None:
        """Let every pytest end its engines, then end what is left."""
        self.stopping.set()
        for process in list(self._running):
            process.send_signal(signal.SIGINT)
        until = time.monotonic() + runs.INTERRUPT_GRACE_S
        for process in list(self._running):
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                process.wait(max(0.0, until - time.monotonic()))
            runs.end_command(process)
