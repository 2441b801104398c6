"""Running a request here: unpacked, its environment built, its cells run by a pytest of their own, outcomes told as they come."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..cases import results
from ..cases.results import RunResult
from ..errors import BuildError, RegressError
from ..processes.dossier import log_tail
from ..util.paths import writable_root
from ..util.rundir import scratch
from ..util.sizes import GIB, MIB
from . import packing
from . import runner as runs
from .cell import MAX_LOG, CellOutcome, CellRequest, State

LOOK_S = 0.2
"""Between two looks at what pytest has reported."""
GRACE_S = 5.0
"""For pytest to end when it must."""
FULL = 16 * MIB
"""A disk with less room is full: what failed there may have failed for that."""

Tell = Callable[[CellOutcome], None]


def answer(line: bytes, about: Mapping[str, str], tell: Tell) -> CellOutcome:
    """Run the request that is the line; ``tell`` gets an outcome when cells have ended. The last one is returned, when nothing of it is left here.

    The working directory is changed while it lasts.
    """
    try:
        request = CellRequest.from_text(line)
        if (room := shutil.disk_usage(writable_root()).free) < request.needs.disk_bytes:
            wanted = f"{request.needs.disk_bytes / GIB:.1f} are asked for"
            return CellOutcome(
                State.LOST, why=f"{writable_root()} has {room / GIB:.1f} GiB free, and {wanted}", node=about
            )
        with scratch() as folder, contextlib.chdir(folder):
            return _run(request, folder, about, tell)
    except BuildError as error:
        return CellOutcome(State.LOST if _is_full() else State.UNBUILT, why=str(error), node=about)
    except (RegressError, OSError) as error:
        return CellOutcome(State.LOST, why=str(error), node=about)


def _run(request: CellRequest, folder: Path, about: Mapping[str, str], tell: Tell) -> CellOutcome:
    job, options = packing.unpack(request, folder)
    runs.check_environments([job])
    runs.build_with_cache(lambda line: None)(job.environment)
    if not job.cases:
        return CellOutcome(node=about)
    report = folder / "report.json"
    watched = _Watched(folder / "log", report, request.deadline_s, lambda run: tell(_outcome(run, about)))
    found = runs.run_job(job, options, watched.start, report)
    log = log_tail(folder / "log", MAX_LOG)
    if watched.lost or (_is_full() and not all(each.verdict.expected for each in found.results)):
        why = watched.lost or f"{writable_root()} or the temporary directory is full"
        return CellOutcome(State.LOST, why=why, node=about, log=log)
    return _outcome(found, about, log=log, last=True)


class _Watched:
    """Starts pytest, and tells what its report has more than before whenever it has grown. ``lost``: why that says nothing of cases, if so."""

    def __init__(self, log: Path, report: Path, deadline_s: float, tell: Callable[[RunResult], None]) -> None:
        self._log = log
        self._report = report
        self._deadline_s = deadline_s
        self._tell = tell
        self._told = 0
        self.lost = ""

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """As ``runs.run_command``, with the output in the log."""
        with self._log.open("wb") as log:
            process = runs.start_command(command, environment, output=log)
            since = time.monotonic()
            try:
                while True:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        return self._ended(process.wait(LOOK_S))
                    if self._has_grown():
                        since = time.monotonic()
                    elif time.monotonic() - since > self._deadline_s:
                        self.lost = f"no cell ended within {self._deadline_s:.0f} s"
                        return -signal.SIGKILL
            finally:
                runs.end_command(process, GRACE_S)

    def _ended(self, status: int) -> int:
        if status == -signal.SIGKILL:  # nobody of ours does that
            self.lost = "pytest was killed (SIGKILL), as the kernel does that is out of memory"
        return status

    def _has_grown(self) -> bool:
        if not self._report.exists():
            return False
        new = results.read(self._report).results[self._told :]  # written whole, in the order of the run
        self._told += len(new)
        if new:
            self._tell(RunResult(new))
        return bool(new)


def _outcome(found: RunResult, about: Mapping[str, str], *, log: str = "", last: bool = False) -> CellOutcome:
    placed = tuple(dataclasses.replace(each, node=dict(about)) for each in found.results)
    return CellOutcome(run=dataclasses.replace(found, results=placed), last=last, node=about, log=log)


def _is_full() -> bool:
    return any(shutil.disk_usage(each).free < FULL for each in (writable_root(), tempfile.gettempdir()))
