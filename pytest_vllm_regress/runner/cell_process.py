"""Runs the request that comes in one line on standard input, in a process of its own; outcomes go to standard output, one a line.

``python -m pytest_vllm_regress.runner.cell_process``. Standard input stays open as the lifeline: when it closes, whoever asked is gone, and
this process ends its pytest (whose nannies end the engines) and removes what is left. It is nobody's child: what kills a worker's
children must not take away who cleans up behind them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..cases import results
from ..cases.results import RunResult
from ..errors import BuildError, RegressError, UsageError
from ..gpus import nvml
from ..processes.dossier import log_tail
from ..processes.leftovers import sweep
from ..util.files import peek
from ..util.paths import writable_root
from ..util.rundir import scratch
from ..util.sizes import GIB, MIB
from . import packing
from . import runner as runs
from .cell import MAX_LOG, CellOutcome, CellRequest, State

LOOK_S = 0.2
"""Between two looks at what pytest has reported."""
GRACE_S = 5.0
"""For pytest to end after its asker is gone."""
FULL = 16 * MIB
"""A disk with less room is full: what failed there may have failed for that."""

Tell = Callable[[CellOutcome], None]


def main(node: str = "") -> None:
    """``node``: what this machine is called in results (default: its host name)."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.set_inheritable(answers.fileno(), False)
    # Nothing that is started here can hold the answers open.
    os.dup2(os.open(os.devnull, os.O_RDWR), sys.stdout.fileno())
    line = sys.stdin.buffer.readline()
    if os.fork():
        os._exit(0)
    os.setsid()
    # Whoever started us may have blocked signals, as Ray's workers do: neither we nor pytest would ever end.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_watch, daemon=True).start()
    about = facts(node)

    def tell(outcome: CellOutcome) -> None:
        with contextlib.suppress(BrokenPipeError):
            answers.write(outcome.to_text() + "\n")
            answers.flush()

    try:
        tell(_answer(line, about, tell))  # the last one when all is cleaned up: whoever has it closes our lifeline
    except KeyboardInterrupt:
        _clean_up()
    os._exit(0)  # whoever asked may be gone, and with it the other end of every stream


def _clean_up() -> None:
    """Remove what the ended pytest left; again while what it left is still ending."""
    until = time.monotonic() + GRACE_S
    while sweep() and time.monotonic() < until:
        time.sleep(LOOK_S)


def facts(node: str = "") -> dict[str, str]:
    """What results say of this machine."""
    machine = nvml.look()
    driver = {} if isinstance(machine, str) else {"driver": str(machine.driver)}
    return {
        "node": node or socket.gethostname(),
        "machine": platform.machine(),
        "processor": _processor(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **driver,
    }


def answer(request: CellRequest, about: Mapping[str, str], tell: Tell) -> CellOutcome:
    """Run the request; ``tell`` gets an outcome when cells have ended, and the last one is returned, when nothing of it is left here.

    The working directory is changed while it lasts.
    """
    if (room := shutil.disk_usage(writable_root()).free) < request.needs.disk_bytes:
        why = f"{writable_root()} has {room / GIB:.1f} GiB free, and {request.needs.disk_bytes / GIB:.1f} are asked for"
        return CellOutcome(State.LOST, why=why, node=about)
    before = Path.cwd()
    with scratch() as folder:
        os.chdir(folder)
        try:
            return _run(request, folder, about, tell)
        except BuildError as error:
            return CellOutcome(State.LOST if _is_full() else State.UNBUILT, why=str(error), node=about)
        except (RegressError, OSError) as error:
            return CellOutcome(State.LOST, why=str(error), node=about)
        finally:
            os.chdir(before)


def _answer(line: bytes, about: Mapping[str, str], tell: Tell) -> CellOutcome:
    try:
        return answer(CellRequest.from_text(line), about, tell)
    except UsageError as error:
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
    if watched.late or (_is_full() and not all(each.verdict.expected for each in found.results)):
        why = watched.late or f"{writable_root()} or the temporary directory is full"
        return CellOutcome(State.LOST, why=why, node=about, log=log)
    return _outcome(found, about, log=log, last=True)


class _Watched:
    """Starts pytest, and tells what its report has more than before whenever it has grown. ``late``: why it was ended, if it was."""

    def __init__(self, log: Path, report: Path, deadline_s: float, tell: Callable[[RunResult], None]) -> None:
        self._log = log
        self._report = report
        self._deadline_s = deadline_s
        self._tell = tell
        self._told = 0
        self.late = ""

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """As ``runs.run_command``, with the output in the log."""
        with self._log.open("wb") as log:
            process = runs.start_command(command, environment, output=log)
            since = time.monotonic()
            try:
                while True:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        return process.wait(LOOK_S)
                    if self._has_grown():
                        since = time.monotonic()
                    elif time.monotonic() - since > self._deadline_s:
                        self.late = f"no cell ended within {self._deadline_s:.0f} s"
                        return -signal.SIGKILL
            finally:
                runs.end_command(process, GRACE_S)

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


def _processor() -> str:
    lines = peek(Path("/proc/cpuinfo"), 64 * 1024).splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def _watch() -> None:
    with contextlib.suppress(OSError):
        while sys.stdin.buffer.read(1):
            pass
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    main(*sys.argv[1:2])
