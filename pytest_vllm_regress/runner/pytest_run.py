"""The pytest process over a batch: its command and environment, starting and stopping it, and its
report, read as it grows."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import shlex
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from ..cases.results import RunResult, read_appended_results
from ..engines.processes.logs import log_tail
from ..errors import UsageError
from ..util.paths import PACKAGE
from ..util.rundir import scratch
from ..util.text import without_colours
from .batch import Batch, RunOptions, describe_status, with_missing_cases
from .plan import recorded_seconds
from .suite import read_suite_report

INTERRUPT_GRACE_S = 30.0
"""Seconds that an interrupted pytest has to end its engines."""
TERMINATE_GRACE_S = 10.0
"""Seconds between SIGTERM and SIGKILL."""
OUTER_TIMEOUT_S = 1800
"""Seconds that pytest-timeout allows each test: a last resort, far above the deadlines of engines.
"""
_PLUGINS = (
    "pytest_vllm_regress.plugin",
    "pytest_timeout",
    "xdist.plugin",
    "_hypothesis_pytestplugin",
)
_FOREIGN = (
    "PYTEST_ADDOPTS",
    "PYTEST_PLUGINS",
    "PYTEST_TIMEOUT",
    "PYTEST_CURRENT_TEST",
    "PYTEST_XDIST_WORKER",
    "PYTHONOPTIMIZE",  # it removes assertions, and with them failures
)
_PYTEST = (
    "import pytest, hypothesis, pytest_vllm_regress.engines.session; "
    "sys.dont_write_bytecode = True; sys.exit(pytest.main())"
)
"""Runs pytest. Bytecode is written for what each run imports, since not every installer does that,
but not beside the user's cases."""
_FIND_PACKAGE = "import sys; p = sys.argv.pop(1); p and sys.path.insert(0, p); "
_LAST_LINES = 5
_HEADINGS = ("===", "___", "!!!")
_log = logging.getLogger("vllm_regress.runner")

StartCommand = Callable[[Sequence[str], Mapping[str, str]], int]
"""Runs a command with these environment variables and returns its exit status."""


class ReportReader:
    """Reads the report of a pytest that may still be running: JSON lines, one for each case that
    has ended.

    ``results`` is everything read so far. A line that is still being written is left for the next
    time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results = RunResult()
        self._offset = 0

    def read(self) -> RunResult:
        """Return the results that were appended since the last call.

        Raises ``UsageError`` for a line that is not a result file.
        """
        appended, self._offset = read_appended_results(self.path, self._offset)
        self.results = RunResult(
            self.results.results + appended.results,
            tuple(dict.fromkeys(self.results.problems + appended.problems)),
        )
        return appended

    def read_rest(self) -> str:
        """Read what is left after pytest has ended.

        Return why the report is missing or damaged, to be appended to a reason; "" if it is
        neither.
        """
        if not self.path.exists():
            return " and wrote no report"
        try:
            self.read()
            if self.path.stat().st_size > self._offset:
                raise UsageError(f"{self.path}: the last line is incomplete")
        except UsageError as error:
            return f" and left no report that can be read ({error})"
        return ""


def run_batch(
    batch: Batch,
    options: RunOptions,
    start: StartCommand,
    report: ReportReader,
    log: Path | None = None,
) -> RunResult:
    """Run the cases of a batch in a pytest process of their own. Return their results, to which no
    expectation is applied yet.

    ``log``: where ``start`` writes pytest's output (None: to our own terminal).
    """
    if options.suite:
        return _run_suite(batch, options, start, report.path, log)
    with scratch() as folder:
        status = start(
            _batch_command(batch, options, folder, report.path), pytest_environment(folder)
        )
        unreadable = report.read_rest()
        output = "" if log is None else _last_lines(log)
        return with_missing_cases(batch, report.results, status, unreadable, output)


def _run_suite(
    batch: Batch, options: RunOptions, start: StartCommand, report: Path, log: Path | None
) -> RunResult:
    """Run the user's own suite with the user's own configuration. Return no results, only problems:
    the results are in ``report`` (see ``suite.py``)."""
    device = [f"--vllm-device={options.device}"] if options.device else []
    ours = [f"--vllm-env={batch.environment}", f"--vllm-suite={report}", *device]
    status = start([*options.suite, *ours], os.environ)
    tests = read_suite_report(report).values()
    if status == 0 or (status == 1 and not all(test.fits for test in tests)):
        return RunResult()
    output = f". Its output ends with: {_last_lines(log)}" if log else ""
    return RunResult((), (f"{batch.environment}: pytest {describe_status(status)}{output}",))


def _last_lines(log: Path) -> str:
    """Return the last lines of pytest's output without headings, as one line and masked."""
    lines = (without_colours(line).strip() for line in log_tail(log).splitlines())
    return "; ".join(
        deque((line for line in lines if line and line[:3] not in _HEADINGS), maxlen=_LAST_LINES)
    )


def run_command(
    command: Sequence[str], environment: Mapping[str, str], *, output: IO[bytes] | int | None = None
) -> int:
    """Run ``command`` on our own terminal until it ends; return its exit status. ``output``: where
    its output goes (default: ours).

    When we are interrupted it has time to clean up before it is killed.
    """
    # A terminal interrupts the whole group; without one only we are interrupted.
    own_group = not sys.stdin.isatty()
    process = start_command(command, environment, own_group=own_group, output=output)
    try:
        return process.wait()
    except KeyboardInterrupt:
        if own_group:
            process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(INTERRUPT_GRACE_S)
        raise
    finally:
        end_command(process)


def start_command(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    own_group: bool = True,
    output: IO[bytes] | int | None = None,
) -> subprocess.Popen[bytes]:
    """Start ``command``. The kernel sends it SIGTERM when the thread that started it ends.

    ``output``: where its output goes (default: ours).
    """
    sys.stdout.flush()
    process = subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL if own_group else None,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        process_group=0 if own_group else None,
        preexec_fn=_end_with_parent(),
    )
    _log.info("started process %d: %s", process.pid, shlex.join(command))
    return process


def end_command(process: subprocess.Popen[bytes], grace_s: float = TERMINATE_GRACE_S) -> None:
    """End the process if it is still running: SIGTERM, and SIGKILL ``grace_s`` seconds later."""
    if process.poll() is None:
        _log.debug("ending process %d: SIGTERM, and SIGKILL after %g s", process.pid, grace_s)
        process.terminate()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def package_command(code: str) -> list[str]:
    """Return the command that runs Python code, which can import this package and has ``sys``."""
    package = PACKAGE.resolve().parent
    installed = package.name in ("site-packages", "dist-packages")
    place = "" if installed else str(package)
    return [sys.executable, "-P", "-c", _FIND_PACKAGE + code, place]


def pytest_command(scratch: Path, root: Path, paths: Sequence[Path], timeout_s: float) -> list[str]:
    """Return the command for a pytest over ``paths`` with our plugins and no others (see
    ``pytest_environment``) and a timeout for each test."""
    ini = scratch / "pytest.ini"
    ini.write_text(f"[pytest]\naddopts =\ntimeout = {timeout_s:g}\n")
    command = package_command(_PYTEST)
    command += [str(path.resolve()) for path in paths]
    command += [
        "-c",
        str(ini),
        f"--rootdir={root.resolve()}",
        f"--confcutdir={root.resolve()}",
        "--import-mode=importlib",
    ]
    command += [part for plugin in _PLUGINS for part in ("-p", plugin)]
    return [*command, "-p", "no:cacheprovider", "-q", "--continue-on-collection-errors"]


def pytest_environment(scratch: Path) -> dict[str, str]:
    """Return our environment variables without those that would change this pytest: the user's
    options, and other installed plugins of pytest and of Hypothesis (trio has one, whose import
    takes a second at the end of each run)."""
    environment = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    environment.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(scratch / "hypothesis"))
    no_plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "HYPOTHESIS_NO_PLUGINS": "1"}
    return {**environment, **no_plugins}


def _batch_command(batch: Batch, options: RunOptions, scratch: Path, report: Path) -> list[str]:
    workers, cases = options.workers or batch.workers, list(batch.cases)
    if workers:  # the longest first, so that no worker is left with it at the end
        cases.sort(key=lambda case: -recorded_seconds(case, batch.environment))
    command = pytest_command(
        scratch,
        batch.cases[0].directory.parent,
        [case.directory for case in cases],
        OUTER_TIMEOUT_S,
    )
    command += [f"--vllm-env={batch.environment}", f"--vllm-report={report}"]
    if options.device:
        command.append(f"--vllm-device={options.device}")
    if workers:
        # xdist would begin with the engines that most tests share, whatever they take.
        command += ["-n", workers, "--dist", "loadgroup", "--no-loadscope-reorder"]
    return [*command, *options.pytest_args]


def _end_with_parent() -> Callable[[], None]:
    """Return a ``preexec_fn`` after which the child gets SIGTERM when this process dies, even by
    SIGKILL (prctl PR_SET_PDEATHSIG)."""
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(1, signal.SIGTERM)
