"""Dossiers: stacks, logs and resources of an engine that missed a deadline or died. Bounded in size
and time.

The processes are stopped before anything else is read: workers that spin for a dead peer take every
core. A process stopped in a system call still names it in /proc. Stacks have no native frames,
because py-spy needs too long for them in a process that has loaded torch.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from ...util.deadline import Deadline, running_time
from ...util.masking import Masked, mask
from . import process_tree
from .logs import log_tail, ray_logs
from .waits import Waits

MAX_REASON = 300
_PREFIX = re.compile(r"\s*(?:Error|\d+): ")
STACKS_S = 1.8  # for all stacks together: with the grace period of TERM, all processes have ended 3 s after the deadline
MAX_PROCESSES = 24
MAX_STACK_CHARS = 4000
MAX_CHARS = 60000
_LATE: list[subprocess.Popen[str]] = []


@dataclass(frozen=True)
class Dossier:
    """``stacks`` by process and ``logs`` as titled tails.

    ``str`` returns the whole, bounded and masked.
    """

    title: str
    facts: tuple[str, ...]
    stacks: tuple[str, ...]
    logs: tuple[str, ...]

    @property
    def stack_text(self) -> Masked:
        """The section on the processes, masked."""
        return mask("\n".join(self.stacks))

    def __str__(self) -> str:
        return mask(
            "\n".join((f"== dossier: {self.title} ==", *self.facts, *self.stacks, *self.logs))
        )[:MAX_CHARS]


def compile_dossier(
    *,
    title: str,
    processes: Sequence[psutil.Process],
    logs: Sequence[Path],
    ray_dir: Path | None = None,
    facts: Sequence[str] = (),
    resume: bool = True,
) -> Dossier:
    """Return a dossier: ``facts``, then per process its command, state, memory, wait and stack
    (from py-spy), then the tails of the logs.

    The processes are stopped first, because workers that spin for a dead peer would take every core
    from py-spy. With ``resume``, those that ran continue afterwards. What could not be read is
    named, with the reason.
    """
    _LATE[:] = [spy for spy in _LATE if spy.poll() is None]
    states = _suspend(processes)
    try:
        reported = list(processes)[:MAX_PROCESSES]
        with ThreadPoolExecutor(max_workers=4) as pool:
            until = running_time() + STACKS_S
            stacks = list(pool.map(lambda process: _stack(process, until), reported))
        waits_of_tree = Waits(reported, states)
        waits = [waits_of_tree.describe(process) for process in reported]
        heads = [_headline(process, states.get(process.pid)) for process in reported]
    finally:
        for process in processes:
            with suppress(psutil.Error):
                if resume and process.pid in states:
                    process.resume()
    sections = [
        "\n".join(filter(None, (f"-- process {head}", wait, stack)))
        for head, wait, stack in zip(heads, waits, stacks, strict=True)
    ]
    if len(processes) > len(reported):
        sections.append(f"-- {len(processes) - len(reported)} more processes are not shown")
    if not processes:
        sections.append("-- no process of this engine was alive")
    tails = [(log.name, log_tail(log)) for log in [*logs, *ray_logs(ray_dir)]]
    return Dossier(
        title,
        tuple(facts),
        tuple(sections),
        tuple(f"-- log {name}\n{tail}" for name, tail in tails if tail),
    )


def _suspend(processes: Sequence[psutil.Process]) -> dict[int, str]:
    """Stop all processes that are not stopped yet. Return their previous states by pid."""
    states: dict[int, str] = {}
    for process in processes:
        with suppress(psutil.Error):
            state = process.status()
            if state != psutil.STATUS_STOPPED:
                process.suspend()
                states[process.pid] = state
    return states


def time_not_run(deadline: Deadline) -> tuple[str, ...]:
    """Return as a fact how long the controller did not run during a wait; empty if that was no
    noticeable time."""
    if deadline.not_run_s < 1.0:
        return ()
    return (
        f"not run: for {deadline.not_run_s:.1f} s of this wait the controller did not run (stopped, swapped out, or the machine slept); "
        "the deadline was extended by them",
    )


def py_spy() -> str | None:
    """Return the py-spy program installed with this interpreter, or one on the PATH."""
    program = Path(sys.executable).with_name("py-spy")
    return str(program) if program.exists() else shutil.which("py-spy")


def _stack(process: psutil.Process, until: float) -> str:
    program = py_spy()
    if program is None:
        return "(no stack: py-spy is not installed)"
    remaining_s = until - running_time()
    if remaining_s <= 0:
        return f"(no stack: the {STACKS_S:g} s for all stacks were used up)"
    command = [
        program,
        "dump",
        "--pid",
        str(process.pid),
        "--nonblocking",
    ]  # a stopped process cannot be paused by ptrace
    try:
        spy = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        return f"(no stack: {error})"
    try:
        out, errors = spy.communicate(timeout=remaining_s)
    except subprocess.TimeoutExpired:
        if spy.poll() is None:
            spy.kill()
            # Do not wait for it: it may be reading gigabytes of libraries from a slow disk, which
            # even KILL does not interrupt.
            _LATE.append(spy)
            return f"(no stack: py-spy gave none within {remaining_s:.1f} s)"
        out, errors = spy.communicate()  # it ended while this process did not run
    if spy.returncode:
        return f"(no stack: {_reason(errors) or 'py-spy failed'})"
    return out.strip()[:MAX_STACK_CHARS]


def _reason(errors: str) -> str:
    """Return the error and its causes that py-spy printed, without its own stack."""
    message = errors.partition("Stack backtrace:")[0].replace("Caused by:", "")
    lines = (_PREFIX.sub("", line).strip() for line in message.splitlines())
    return "; ".join(dict.fromkeys(filter(None, lines)))[:MAX_REASON]


def _headline(process: psutil.Process, state: str | None) -> str:
    facts = []
    with suppress(psutil.Error), process.oneshot():
        facts = [
            state or process.status(),
            f"{process.memory_info().rss >> 20} MiB",
            f"{process.num_threads()} threads",
            f"{sum(process.cpu_times()[:2]):.1f} s of CPU",
            f"parent {process.ppid()}",
        ]
    return f"{process_tree.describe(process)} [{', '.join(facts) or 'gone'}]"
