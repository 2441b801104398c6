"""What happens around the harness: disks that are full, clocks that go back, environments and checkpoints that vanish, two runs at once."""

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

from pytest_vllm_regress.checkpoints.forge import ensure_checkpoint
from pytest_vllm_regress.engines import session as sessions
from pytest_vllm_regress.engines.engine import Engine
from pytest_vllm_regress.engines.ports import PortLease, lease_port
from pytest_vllm_regress.engines.server import Server
from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.settings import Settings
from pytest_vllm_regress.engines.spec import EngineSpec
from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.names import resolve
from pytest_vllm_regress.processes.agent import Agent
from pytest_vllm_regress.util.deadline import Deadline
from pytest_vllm_regress.util.rundir import RunDir
from tests.faults.ledger import Cell, Seen, cell

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
    made = RunDir.create()
    yield made
    made.remove()


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    place = tmp_path / "full"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def answers(agent: Agent) -> None:
    child = agent.fork("probe", Deadline.after("start", 20))
    assert child.request("call", Deadline.after("request", 20), file=str(PROBE), function="fine", arguments={}) == 1
    child.stop(Deadline.after("stop", 10))


@pytest.mark.sample
@pytest.mark.parametrize("function", ["fine", "flood_stdout"])
def test_no_room_for_the_log(run: RunDir, cells: list[Cell], function: str) -> None:
    """Every write to the child's log fails for want of space."""
    agent = Agent(Path(sys.executable), run)
    agent.start(Deadline.after("import", 20))
    (run.logs / "agent-probe-1.log").symlink_to("/dev/full")
    try:
        with cell(
            cells, run, "child", f"log disk full, {function.replace('_', ' ')}", "request", spared=lambda: own(agent)
        ) as seen:
            child = agent.fork("probe", Deadline.after("start", 20))
            seen.call(
                lambda: child.request(
                    "call", Deadline.after("request", 30), file=str(PROBE), function=function, arguments={}
                ),
                30,
            )
            outcome = seen.outcome
            seen.call(lambda: child.stop(Deadline.after("stop", 10)), 10)
            seen.outcome = outcome
            seen.following(lambda: answers(agent))
    finally:
        agent.stop()


def own(agent: Agent) -> frozenset[int]:
    assert agent._process is not None
    return frozenset({agent._process.pid})


def test_no_room_in_the_cache(run: RunDir, cells: list[Cell], full_disk: Path, tmp_path: Path) -> None:
    recipe = resolve(LIGHT)
    with cell(cells, run, "cache", "disk full", "build") as seen:
        seen.call(lambda: EnvironmentCache(full_disk).ensure(recipe), 300)
        assert seen.outcome.startswith(("BuildError", "UsageError"))
        seen.files += [path for path in (full_disk / "environments").glob("*") if path.is_dir()]
        seen.following(lambda: EnvironmentCache(tmp_path / "roomy").ensure(recipe) and None)


def test_no_room_for_a_checkpoint(run: RunDir, cells: list[Cell], full_disk: Path, tmp_path: Path) -> None:
    with cell(cells, run, "cache", "disk full", "checkpoint") as seen:
        seen.call(lambda: ensure_checkpoint("vision", full_disk), 30)
        assert seen.outcome.startswith("UsageError") and "cannot be written" in seen.outcome
        seen.files += list(full_disk.iterdir())
        seen.following(lambda: ensure_checkpoint("vision", tmp_path) and None)


@pytest.mark.sample
def test_clock_set_back(run: RunDir, cells: list[Cell], monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock goes back an hour while a child hangs."""
    agent = Agent(Path(sys.executable), run)
    agent.start(Deadline.after("import", 20))
    real = time.time
    try:
        with cell(cells, run, "child", "clock set back, hang", "request", spared=lambda: own(agent)) as seen:
            child = agent.fork("probe", Deadline.after("start", 20))
            timer = threading.Timer(0.3, lambda: monkeypatch.setattr(time, "time", lambda: real() - 3600))
            timer.start()
            seen.call(
                lambda: child.request(
                    "call", Deadline.after("request", 1.5), file=str(PROBE), function="hang", arguments={}
                ),
                1.5,
            )
            timer.join()
            assert seen.outcome.startswith("DeadlineExceeded")
            seen.following(lambda: answers(agent))
    finally:
        agent.stop()


def test_two_builds_of_one_environment(run: RunDir, cells: list[Cell], tmp_path: Path) -> None:
    environment = {**os.environ, "VLLM_REGRESS_CACHE": str(tmp_path)}
    command = [sys.executable, "-m", "pytest_vllm_regress", "env", "build", LIGHT]
    with cell(cells, run, "cache", "two runs at once", "build") as seen:
        both = [
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for _ in range(2)
        ]
        said = [process.communicate(timeout=300)[0] for process in both]
        assert [process.returncode for process in both] == [0, 0], said
        assert sum("built in" in text for text in said) == 1
        seen.outcome = "one builds, the other waits"
        seen.following(lambda: EnvironmentCache(tmp_path).ensure(resolve(LIGHT)) and None)


def test_environment_deleted_while_in_use(run: RunDir, cells: list[Cell], tmp_path: Path) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text("def look():\n    import lmformatenforcer\n    return lmformatenforcer.__name__\n")
    cache = EnvironmentCache(tmp_path / "cache")

    def look(agent: Agent) -> None:
        child = agent.fork("probe", Deadline.after("start", 20))
        try:
            assert (
                child.request("call", Deadline.after("request", 30), file=str(probe), function="look", arguments={})
                == "lmformatenforcer"
            )
        finally:
            child.stop(Deadline.after("stop", 10))

    def again() -> None:
        agent = Agent(cache.ensure(resolve(LIGHT)), run, name="second")
        agent.start(Deadline.after("import", 60))
        look(agent)
        agent.stop()

    with cache.lease(resolve(LIGHT)) as python:
        agent = Agent(python, run)
        agent.start(Deadline.after("import", 60))
        with cell(cells, run, "cache", "environment deleted", "request", spared=lambda: own(agent)) as seen:
            shutil.rmtree(python.parent.parent)
            seen.call(lambda: look(agent), 60)
            assert "lmformatenforcer" in seen.outcome
            seen.following(again)
        agent.stop()


SPEC = EngineSpec.create(generation="V1")
ENV = "vllm-0.8.5"


@pytest.fixture(scope="module")
def made() -> Iterator[Callable[..., Session]]:
    """Sessions on the simulated device; the first one is kept warm."""
    open_ones: list[Session] = []

    def make(**settings: str) -> Session:
        found = Session(
            Settings(environments=(ENV,), device="sim", **settings),  # type: ignore[arg-type]
            lambda phase, seconds: Deadline.after(phase, seconds or 60),
        )
        open_ones.append(found)
        return found

    yield make
    for each in open_ones:
        each.close()


def start(session: Session) -> Engine:
    return session.engine(session.target(ENV), SPEC, user="faults", fresh=True)


def serve(session: Session) -> Server:
    return session.server(session.target(ENV), SPEC, user="faults", fresh=True)


def agents(session: Session) -> frozenset[int]:
    return frozenset(agent._process.pid for agent in session._agents.values() if agent._process is not None)


@pytest.mark.engine
@pytest.mark.parametrize("phase", ["start", "request"])
def test_checkpoint_deleted(cells: list[Cell], made: Callable[..., Session], phase: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        session = made(model=str(ensure_checkpoint("text", Path(folder))))
        session.target(ENV)
        session._agent(session.target(ENV))
        with cell(
            cells, session.run, "engine on sim", "checkpoint deleted", phase, spared=lambda: agents(session)
        ) as seen:
            if phase == "start":
                shutil.rmtree(session.settings.model or "")
                seen.call(lambda: start(session).stop(), 60)
                assert seen.outcome != "no error"
            else:
                engine = start(session)
                shutil.rmtree(session.settings.model or "")
                seen.call(engine.check, 60)
                engine.stop()
            ensure_checkpoint("text", Path(folder))
            seen.following(lambda: following(session))


def following(session: Session) -> None:
    engine = start(session)
    engine.check()
    engine.stop()


@pytest.mark.engine
def test_port_stolen(cells: list[Cell], made: Callable[..., Session], monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program takes the server's port after it was chosen and before the server listens."""
    session = made()
    session._agent(session.target(ENV))
    thief = socket.socket()

    def stolen() -> PortLease:
        lease = lease_port()
        thief.bind(("127.0.0.1", lease.number))
        thief.listen()
        return lease

    with cell(cells, session.run, "server on sim", "port stolen", "start", spared=lambda: agents(session)) as seen:
        with monkeypatch.context() as patch:
            patch.setattr(sessions, "lease_port", stolen)
            seen.call(lambda: serve(session).stop(), 60)
        thief.close()
        assert seen.outcome != "no error"
        seen.following(lambda: serve(session).stop() and None)


@pytest.mark.engine
@pytest.mark.parametrize("number", [None, 9], ids=["asked-to-stop", "killed"])
def test_ray_left_running(cells: list[Cell], made: Callable[..., Session], tmp_path: Path, number: int | None) -> None:
    """Ray's daemons outlive the process that started them."""
    probe = tmp_path / "probe.py"
    probe.write_text(RAY)
    session = made()
    target = session.target(ENV)
    session._agent(target)

    def call(function: str, seen: Seen | None = None, **arguments: object) -> None:
        child = session.probe(target)
        try:
            child.request(
                "call", Deadline.after("request", 60), file=str(probe), function=function, arguments=arguments
            )
        finally:
            child.stop(Deadline.after("stop", 20))

    fault = f"Ray left running, its driver {'asked to stop' if number is None else 'killed'}"
    with cell(cells, session.run, "probe with Ray", fault, "request", spared=lambda: agents(session)) as seen:
        seen.call(lambda: call("start", number=number), 90)
        seen.following(lambda: call("fine"))
    place = session.run.path
    session.close()
    assert not place.exists()


ENGINE = """
import pytest

@pytest.mark.vllm_engine(tensor_parallel_size=2, executor="mp", generation="V1")
def test_it(vllm_engine):
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
def test_an_engine_that_cannot_start_names_what_is_short(
    tmp_path: Path, around: tuple[str, ...], named: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """vLLM says "See root cause above" in both, where nothing stands above."""
    if around[0] == "unshare" and subprocess.run([*around, "true"], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    (tmp_path / "test_engine.py").write_text(ENGINE)
    ours = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--vllm-env=vllm-0.8.5",
        "--vllm-device=sim",
    ]
    done = subprocess.run([*around, *ours, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1 and named in done.stdout, done.stdout[-4000:]
