"""Faults outside the harness: full disks, a clock set back, deleted environments and checkpoints,
two runs at once."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_vllm_regress.engines import session as sessions
from pytest_vllm_regress.engines.checkpoints.forge import ensure_checkpoint
from pytest_vllm_regress.engines.engine import Engine
from pytest_vllm_regress.engines.ports import PortLease, lease_port
from pytest_vllm_regress.engines.processes.agent import Agent
from pytest_vllm_regress.engines.server import Server
from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.settings import Settings
from pytest_vllm_regress.engines.spec import EngineSpec
from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.names import resolve
from pytest_vllm_regress.util.deadline import Deadline
from pytest_vllm_regress.util.rundir import RunDir
from tests.faults.cells import Cell, cell

pytestmark = pytest.mark.faults
PROBE = Path(__file__).with_name("misbehaviour.py")
LIGHT = "lm-format-enforcer-0.10.11"
RAY = """
import os, signal, time

def start(number=None):
    import ray

    ray.init(num_cpus=1, include_dashboard=False)
    if number:
        os.kill(os.getpid(), number)
    return ray.cluster_resources()["CPU"]

def fine():
    return 1
"""


@pytest.fixture
def run() -> Iterator[RunDir]:
    directory = RunDir.create()
    yield directory
    directory.remove()


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of one MiB."""
    folder = tmp_path / "full"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def run_child(agent: Agent) -> None:
    child = agent.start_child("probe", Deadline.after("start", 60))
    assert (
        child.request(
            "call", Deadline.after("request", 60), file=str(PROBE), function="fine", arguments={}
        )
        == 1
    )
    child.stop(Deadline.after("stop", 60))


@pytest.mark.sample
@pytest.mark.parametrize("function", ["fine", "flood_stdout"])
def test_a_full_log_disk_harms_no_child(run: RunDir, cells: list[Cell], function: str) -> None:
    """Every write to the child's log fails because the disk is full."""
    agent = Agent(Path(sys.executable), run)
    agent.start(Deadline.after("import", 60))
    (run.logs / "agent-probe-1.log").symlink_to("/dev/full")
    try:
        with cell(
            cells,
            run,
            "child",
            f"log disk full, {function.replace('_', ' ')}",
            "request",
            spared=lambda: pids(agent),
        ) as recorder:
            child = agent.start_child("probe", Deadline.after("start", 60))
            recorder.call(
                lambda: child.request(
                    "call",
                    Deadline.after("request", 60),
                    file=str(PROBE),
                    function=function,
                    arguments={},
                ),
                60,
            )
            outcome = recorder.outcome
            recorder.call(lambda: child.stop(Deadline.after("stop", 60)), 60)
            recorder.outcome = outcome
            recorder.run_next(lambda: run_child(agent))
    finally:
        agent.stop()


def pids(agent: Agent) -> frozenset[int]:
    assert agent.pid is not None
    return frozenset({agent.pid})


def test_a_full_cache_disk_fails_the_build(
    run: RunDir, cells: list[Cell], full_disk: Path, tmp_path: Path
) -> None:
    recipe = resolve(LIGHT)
    with cell(cells, run, "cache", "disk full", "build") as recorder:
        recorder.call(lambda: EnvironmentCache(full_disk).ensure(recipe), 300)
        assert recorder.outcome.startswith(("BuildError", "UsageError"))
        recorder.files += [path for path in (full_disk / "environments").glob("*") if path.is_dir()]
        recorder.run_next(lambda: EnvironmentCache(tmp_path / "roomy").ensure(recipe) and None)


def test_a_full_disk_fails_the_checkpoint(
    run: RunDir, cells: list[Cell], full_disk: Path, tmp_path: Path
) -> None:
    with cell(cells, run, "cache", "disk full", "checkpoint") as recorder:
        recorder.call(lambda: ensure_checkpoint("vision", full_disk), 30)
        assert recorder.outcome.startswith("UsageError") and "cannot be written" in recorder.outcome
        recorder.files += list(full_disk.iterdir())
        recorder.run_next(lambda: ensure_checkpoint("vision", tmp_path) and None)


@pytest.mark.sample
def test_a_clock_set_back_does_not_extend_a_deadline(
    run: RunDir, cells: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wall clock is set back an hour while a child hangs."""
    agent = Agent(Path(sys.executable), run)
    agent.start(Deadline.after("import", 60))
    real = time.time
    try:
        with cell(
            cells, run, "child", "clock set back, hang", "request", spared=lambda: pids(agent)
        ) as recorder:
            child = agent.start_child("probe", Deadline.after("start", 60))
            timer = threading.Timer(
                0.3, lambda: monkeypatch.setattr(time, "time", lambda: real() - 3600)
            )
            timer.start()
            recorder.call(
                lambda: child.request(
                    "call",
                    Deadline.after("request", 1.5),
                    file=str(PROBE),
                    function="hang",
                    arguments={},
                ),
                1.5,
            )
            timer.join()
            assert recorder.outcome.startswith("DeadlineExceeded")
            recorder.run_next(lambda: run_child(agent))
    finally:
        agent.stop()


def test_one_of_two_concurrent_builds_waits(run: RunDir, cells: list[Cell], tmp_path: Path) -> None:
    environment = {**os.environ, "VLLM_REGRESS_CACHE": str(tmp_path)}
    command = [sys.executable, "-m", "pytest_vllm_regress", "env", "build", LIGHT]
    with cell(cells, run, "cache", "two runs at once", "build") as recorder:
        builds = [
            subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for _ in range(2)
        ]
        outputs = [process.communicate(timeout=300)[0] for process in builds]
        assert [process.returncode for process in builds] == [0, 0], outputs
        assert sum("built in" in text for text in outputs) == 1
        recorder.outcome = "one builds, the other waits"
        recorder.run_next(lambda: EnvironmentCache(tmp_path).ensure(resolve(LIGHT)) and None)


def test_an_environment_that_is_deleted_while_in_use_is_rebuilt(
    run: RunDir, cells: list[Cell], tmp_path: Path
) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text(
        "def name():\n    import lmformatenforcer\n    return lmformatenforcer.__name__\n"
    )
    cache = EnvironmentCache(tmp_path / "cache")

    def import_package(agent: Agent) -> None:
        child = agent.start_child("probe", Deadline.after("start", 60))
        try:
            assert (
                child.request(
                    "call",
                    Deadline.after("request", 60),
                    file=str(probe),
                    function="name",
                    arguments={},
                )
                == "lmformatenforcer"
            )
        finally:
            child.stop(Deadline.after("stop", 60))

    def import_in_rebuilt_environment() -> None:
        agent = Agent(cache.ensure(resolve(LIGHT)), run, name="second")
        agent.start(Deadline.after("import", 60))
        import_package(agent)
        agent.stop()

    with cache.lease(resolve(LIGHT)) as python:
        agent = Agent(python, run)
        agent.start(Deadline.after("import", 60))
        with cell(
            cells, run, "cache", "environment deleted", "request", spared=lambda: pids(agent)
        ) as recorder:
            shutil.rmtree(python.parent.parent)
            recorder.call(lambda: import_package(agent), 60)
            assert "lmformatenforcer" in recorder.outcome
            recorder.run_next(import_in_rebuilt_environment)
        agent.stop()


SPEC = EngineSpec.create(generation="V1")
ENV = "vllm-0.8.5"


@pytest.fixture(scope="module")
def make_session() -> Iterator[Callable[..., Session]]:
    """Return a function that creates sessions on the simulated device.

    They are closed at the end of the module.
    """
    sessions: list[Session] = []

    def make(**settings: str) -> Session:
        session = Session(
            Settings(environments=(ENV,), device="sim", **settings),  # type: ignore[arg-type]
            lambda phase, seconds: Deadline.after(phase, seconds or 60),
        )
        sessions.append(session)
        return session

    yield make
    for session in sessions:
        session.close()


def start(session: Session) -> Engine:
    running: Engine = session.start("offline", session.target(ENV), SPEC, user="faults", fresh=True)
    return running


def serve(session: Session) -> Server:
    running: Server = session.start("serve", session.target(ENV), SPEC, user="faults", fresh=True)
    return running


def agents(session: Session) -> frozenset[int]:
    return frozenset(agent.pid for agent in session.agents.started if agent.pid is not None)


@pytest.mark.engine
@pytest.mark.parametrize("phase", ["start", "request"])
def test_an_engine_survives_or_names_a_deleted_checkpoint(
    cells: list[Cell], make_session: Callable[..., Session], phase: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        session = make_session(model=str(ensure_checkpoint("text", Path(folder))))
        session.target(ENV)
        session.agents.warm(session.target(ENV))
        with cell(
            cells,
            session.run,
            "engine on sim",
            "checkpoint deleted",
            phase,
            spared=lambda: agents(session),
        ) as recorder:
            if phase == "start":
                shutil.rmtree(session.settings.model or "")
                recorder.call(lambda: start(session).stop(), 60)
                assert recorder.outcome != "no error"
            else:
                engine = start(session)
                shutil.rmtree(session.settings.model or "")
                recorder.call(engine.check, 60)
                engine.stop()
            ensure_checkpoint("text", Path(folder))
            recorder.run_next(lambda: run_engine(session))


def run_engine(session: Session) -> None:
    engine = start(session)
    engine.check()
    engine.stop()


@pytest.mark.engine
def test_a_stolen_port_fails_the_server(
    cells: list[Cell], make_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program takes the server's port between its choice and the server's start."""
    session = make_session()
    session.agents.warm(session.target(ENV))
    thief = socket.socket()

    def lease_stolen_port() -> PortLease:
        lease = lease_port()
        thief.bind(("127.0.0.1", lease.number))
        thief.listen()
        return lease

    with cell(
        cells, session.run, "server on sim", "port stolen", "start", spared=lambda: agents(session)
    ) as recorder:
        with monkeypatch.context() as patch:
            patch.setattr(sessions, "lease_port", lease_stolen_port)
            recorder.call(lambda: serve(session).stop(), 60)
        thief.close()
        assert recorder.outcome != "no error"
        recorder.run_next(lambda: serve(session).stop() and None)


@pytest.mark.engine
@pytest.mark.parametrize("number", [None, 9], ids=["asked-to-stop", "killed"])
def test_rays_daemons_are_ended(
    cells: list[Cell], make_session: Callable[..., Session], tmp_path: Path, number: int | None
) -> None:
    """Ray's daemons outlive the process that started them."""
    probe = tmp_path / "probe.py"
    probe.write_text(RAY)
    session = make_session()
    target = session.target(ENV)
    session.agents.warm(target)

    def call(function: str, **arguments: object) -> None:
        child = session.probe(target)
        try:
            child.request(
                "call",
                Deadline.after("request", 60),
                file=str(probe),
                function=function,
                arguments=arguments,
            )
        finally:
            child.stop(Deadline.after("stop", 60))

    fault = f"Ray left running, its driver {'asked to stop' if number is None else 'killed'}"
    with cell(
        cells, session.run, "probe with Ray", fault, "request", spared=lambda: agents(session)
    ) as recorder:
        recorder.call(lambda: call("start", number=number), 90)
        recorder.run_next(lambda: call("fine"))
    folder = session.run.path
    session.close()
    assert not folder.exists()


ENGINE = """
import pytest

@pytest.mark.vllm_engine(tensor_parallel_size=2, executor="mp", generation="V1")
def test_generate(vllm_engine):
    vllm_engine.generate("a")
"""
FILLED = 'mount -t tmpfs -o size=1m none /dev/shm && { dd if=/dev/zero of=/dev/shm/fill bs=4k count=300 2>/dev/null; exec "$@"; }'


@pytest.mark.engine
@pytest.mark.parametrize(
    ("around", "named"),
    [
        (("unshare", "-m", "sh", "-c", FILLED, "sh"), "/dev/shm is full: 0 MiB of 1 MiB were free"),
        (("prlimit", "--nofile=64:64"), "too many open files: `ulimit -n` is 64"),
    ],
    ids=["full /dev/shm", "few open files"],
)
def test_an_engine_that_cannot_start_names_the_missing_resource(
    tmp_path: Path, around: tuple[str, ...], named: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """vLLM itself says "See root cause above" in both cases, although there is nothing above."""
    if around[0] == "unshare" and subprocess.run([*around, "true"], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    (tmp_path / "test_engine.py").write_text(ENGINE)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--vllm-env=vllm-0.8.5",
        "--vllm-device=sim",
    ]
    done = subprocess.run(
        [*around, *command, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 1 and named in done.stdout, done.stdout[-4000:]
