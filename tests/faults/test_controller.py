"""pytest is killed, terminated or interrupted while one of its children is working."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pytest_vllm_regress.engines.processes import process_tree
from pytest_vllm_regress.target_site.vllm_regress_target.nanny import TAG
from pytest_vllm_regress.util.rundir import RunDir
from tests.faults.cells import GONE_S, Cell, cell
from tests.helpers import FEWER_PLUGINS

pytestmark = pytest.mark.faults
PROBE = """
import atexit, os, time

def armed():
    open(os.environ["ARMED"], "w").close()
    time.sleep(600)

def work():
    armed()

def work_at_the_end():
    atexit.register(armed)

def fine():
    return 1
"""
TESTS = """
def test_probe(vllm_probe):
    vllm_probe("{function}", timeout=300)
"""
SIGNALS: dict[str, tuple[signal.Signals, ...]] = {
    "KILL": (signal.SIGKILL,),
    "TERM": (signal.SIGTERM,),
    "Ctrl-C": (signal.SIGINT,),
    "Ctrl-C twice": (signal.SIGINT, signal.SIGINT),
}
PHASES = {"request": "work", "stop": "work_at_the_end"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "probe.py").write_text(PROBE)
    return tmp_path


def command(project: Path, target: Path, *arguments: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--vllm-env={target}",
        f"--rootdir={project}",
        *arguments,
        str(project),
    ]


def environment(project: Path) -> dict[str, str]:
    variables = {
        "ARMED": project / "armed",
        "VLLM_REGRESS_CACHE": project / "cache",
        "PYTEST_ADDOPTS": FEWER_PLUGINS,
    }
    return os.environ | {name: str(value) for name, value in variables.items()}


@contextlib.contextmanager
def running(
    project: Path, target: Path, function: str, *arguments: str
) -> Iterator[tuple[subprocess.Popen[bytes], RunDir]]:
    """Start a pytest, wait until its child works, and yield both the process and its run directory."""
    (project / "test_probe.py").write_text(TESTS.format(function=function))
    options = [*arguments, "--vllm-timeout=stop=300"]
    log = (project / "log").open("wb")
    process = subprocess.Popen(
        command(project, target, *options),
        env=environment(project),
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    try:
        wait_until(lambda: (project / "armed").exists(), process)
        tag = next(
            tag for tag in map(tag_of, psutil.Process(process.pid).children(recursive=True)) if tag
        )
        yield process, RunDir(Path(tempfile.gettempdir(), "-".join(tag.split("-")[:2])), tag)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.close()


def wait_until(
    condition: Callable[[], bool], process: subprocess.Popen[bytes], seconds: float = 60.0
) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None and time.monotonic() < until, (
            "pytest ended before its child worked"
        )
        time.sleep(0.01)  # a grandchild of another program: there is no event to wait for


def tag_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return process.environ().get(TAG, "")
    return ""


def next_run(project: Path, target: Path) -> Callable[[], None]:
    """Return a function that runs another test in the same project."""

    def run() -> None:
        (project / "test_probe.py").write_text(TESTS.format(function="fine"))
        done = subprocess.run(
            command(project, target), env=environment(project), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return run


WORKERS = {"pytest": (), "pytest -n 2": ("-n2",)}
SAMPLE = [
    ("pytest", "KILL", "request"),
    ("pytest", "Ctrl-C twice", "request"),
    ("pytest -n 2", "KILL", "request"),
]
CELLS = [
    pytest.param(
        where, name, phase, marks=[pytest.mark.sample] if (where, name, phase) in SAMPLE else []
    )
    for where in WORKERS
    for name in SIGNALS
    for phase in PHASES
]


@pytest.mark.parametrize(("where", "name", "phase"), CELLS)
def test_an_interrupted_pytest_leaves_nothing(
    project: Path, fixed_target: Path, cells: list[Cell], where: str, name: str, phase: str
) -> None:
    """With xdist, the signal goes to the pytest that the user started; the child belongs to one of
    its workers."""
    with (
        running(project, fixed_target, PHASES[phase], *WORKERS[where]) as (process, run),
        cell(cells, run, where, name, phase) as recorder,
    ):
        recorder.files.append(run.path)
        began = time.monotonic()
        for number in SIGNALS[name]:
            process.send_signal(number)
        status = process.wait(60)
        if WORKERS[where] and signal.SIGINT in SIGNALS[name]:
            began = time.monotonic()  # xdist itself waits ten seconds for its workers
        recorder.late_s = time.monotonic() - began
        left = process_tree.wait_until_gone(process_tree.with_tag(run.tag), GONE_S)
        recorder.late_s = max(recorder.late_s, time.monotonic() - began)
        assert not left
        recorder.outcome = (
            f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        )
        recorder.run_next(next_run(project, fixed_target))


PATIENT = """
import os
from execnet.gateway_base import WorkerPool

wait = WorkerPool.waitall
WorkerPool.waitall = lambda pool, timeout=None: wait(pool, 600)

def pytest_keyboard_interrupt():
    if "PYTEST_XDIST_WORKER" in os.environ:
        open(os.environ["ARMED"] + "-interrupted", "w").close()
"""


def test_xdist_workers_are_interrupted_with_their_controller(
    project: Path, fixed_target: Path
) -> None:
    """Without waiting for execnet, which interrupts what still works after five seconds."""
    (project / "conftest.py").write_text(PATIENT)
    with running(project, fixed_target, "work", "-n1") as (process, _):
        process.send_signal(signal.SIGINT)
        process.wait(60)
        assert (project / "armed-interrupted").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_dead_or_stopped_xdist_worker_leaves_nothing(
    project: Path, fixed_target: Path, cells: list[Cell], number: signal.Signals
) -> None:
    """xdist replaces a worker that dies.

    A stopped worker hangs its pytest until the user interrupts it.
    """
    fault = f"xdist worker {'killed' if number == signal.SIGKILL else 'stopped, then Ctrl-C'}"
    pytest_with_a_worker = running(project, fixed_target, "work", "-n1", "--max-worker-restart=0")
    with (
        pytest_with_a_worker as (process, run),
        cell(cells, run, "pytest", fault, "request") as recorder,
    ):
        recorder.files.append(run.path)
        worker = next(
            child
            for child in psutil.Process(process.pid).children()
            if process_tree.descendants(child.pid)
        )
        began = time.monotonic()
        worker.send_signal(number)
        if number == signal.SIGSTOP:
            process.send_signal(signal.SIGINT)
        status = process.wait(60)
        if number == signal.SIGSTOP:
            assert worker.is_running() is False or worker.status() in (
                psutil.STATUS_ZOMBIE,
                psutil.STATUS_STOPPED,
            )
            began = time.monotonic()  # xdist itself waits for its worker
            with contextlib.suppress(psutil.Error):
                worker.kill()  # xdist leaves a stopped worker to the user
        assert not process_tree.wait_until_gone(process_tree.with_tag(run.tag), GONE_S)
        recorder.late_s = time.monotonic() - began
        recorder.outcome = f"exit status {status}"
        recorder.run_next(next_run(project, fixed_target))
