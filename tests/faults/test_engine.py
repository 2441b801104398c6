"""Engines on the simulated device: each process is killed or stopped in each phase."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from pytest_vllm_regress.engines.engine import Engine
from pytest_vllm_regress.engines.processes import process_tree
from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.settings import Settings
from pytest_vllm_regress.engines.spec import EngineSpec
from pytest_vllm_regress.engines.target import Target
from pytest_vllm_regress.errors import ChildError
from pytest_vllm_regress.util.deadline import Deadline
from tests.faults.cells import Cell, CellRecorder, cell

pytestmark = [pytest.mark.engine, pytest.mark.faults]
SPEC = EngineSpec.create(tensor_parallel_size=2, executor="mp", generation="V1")
SECONDS = {
    "import": 240.0,
    "start": 30.0,
    "ready": 30.0,
    "request": 4.0,
    "stop": 8.0,
    "probe": 10.0,
}
LONG = {"max_tokens": 480, "ignore_eos": True, "n": 8}
ROLES = ("engine process", "engine core", "worker", "nanny", "agent")


class Rig:
    """A session with one warm agent for many engines."""

    def __init__(self) -> None:
        settings = Settings(environments=("vllm-0.8.5",), device="sim")
        self.session = Session(
            settings, lambda phase, seconds: Deadline.after(phase, seconds or SECONDS[phase])
        )
        self.target: Target = self.session.target("vllm-0.8.5")
        self.start().stop()

    def start(self, timeout: float | None = None) -> Engine:
        running: Engine = self.session.start(
            "offline", self.target, SPEC, user="faults", fresh=True, timeout=timeout
        )
        return running

    @property
    def agents(self) -> frozenset[int]:
        """The process ids of the warm agents, which outlive their engines."""
        return frozenset(
            agent.pid for agent in self.session.agents.started if agent.pid is not None
        )

    def run_engine(self) -> None:
        engine = self.start()
        engine.check()
        engine.stop()


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.session.close()


def find(rig: Rig, role: str, nannies: frozenset[int]) -> psutil.Process | None:
    """Return the process in ``role`` of the engine that started after ``nannies``, or None if it
    does not exist yet."""
    if role == "agent":
        return psutil.Process(min(rig.agents))
    new = [
        child
        for agent in rig.agents
        for child in psutil.Process(agent).children()
        if child.pid not in nannies
    ]
    chain: list[psutil.Process] = new[:1]
    for _ in ("engine process", "engine core", "worker"):
        children = (
            [
                child
                for child in chain[-1].children()
                if "resource_tracker" not in " ".join(child.cmdline())
            ]
            if chain
            else []
        )
        chain += children[:1]
    depth = {"nanny": 0, "engine process": 1, "engine core": 2, "worker": 3}[role]
    return chain[depth] if len(chain) > depth else None


def nannies(rig: Rig) -> frozenset[int]:
    return frozenset(
        child.pid for agent in rig.agents for child in psutil.Process(agent).children()
    )


def wait_for(
    condition: Callable[[], psutil.Process | None], seconds: float = 25.0
) -> psutil.Process:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            process = condition()
        except psutil.Error:
            process = None
        if process is not None:
            return process
        time.sleep(0.002)  # there is no event for changes of another program's process tree
    raise AssertionError("the process to harm never appeared")


def busy(process: psutil.Process) -> Callable[[], psutil.Process | None]:
    """Return a condition that yields the process once it has used some more processor time."""
    before = sum(process.cpu_times()[:2])
    return lambda: process if sum(process.cpu_times()[:2]) > before + 0.03 else None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.replace(" ", "-"))
@pytest.mark.parametrize("phase", ["start", "idle", "request", "stop"])
def test_an_engine_with_a_dead_or_stopped_process_ends_in_time(
    rig: Rig, cells: list[Cell], phase: str, role: str, number: signal.Signals
) -> None:
    before = nannies(rig)
    agent = psutil.Process(min(rig.agents))
    fault = f"{role} {'killed' if number == signal.SIGKILL else 'stopped'}"
    with cell(
        cells, rig.session.run, "engine on sim", fault, phase, spared=lambda: rig.agents
    ) as recorder:
        if phase == "start":
            harm_at_start(rig, role, number, before, recorder)
        else:
            engine = rig.start()
            harm(rig, engine, phase, role, number, before, recorder)
        if role == "agent":  # the user ends a stopped agent; the next engine gets a new one
            process_tree.terminate([agent], grace_s=0)
        recorder.run_next(rig.run_engine)


def harm_at_start(
    rig: Rig, role: str, number: signal.Signals, before: frozenset[int], recorder: CellRecorder
) -> None:
    allowed = 6.0
    thread = threading.Thread(
        target=lambda: wait_for(lambda: find(rig, role, before)).send_signal(number)
    )
    thread.start()
    recorder.call(
        lambda: rig.start(allowed).stop(), allowed + (SECONDS["stop"] if role == "agent" else 0)
    )
    thread.join()


def harm(
    rig: Rig,
    engine: Engine,
    phase: str,
    role: str,
    number: signal.Signals,
    before: frozenset[int],
    recorder: CellRecorder,
) -> None:
    victim = wait_for(lambda: find(rig, role, before))
    if phase == "request":
        core = wait_for(lambda: find(rig, "engine core", before))
        worked = busy(core)

        def hit() -> None:
            wait_for(worked)
            victim.send_signal(number)

        thread = threading.Thread(target=hit)
        thread.start()
        recorder.call(lambda: engine.generate(["a"] * 32, LONG), SECONDS["request"])
        thread.join()
    else:
        victim.send_signal(number)
        if phase == "idle":
            recorder.call(lambda: engine.generate("a", {"max_tokens": 1}), SECONDS["request"])
    outcome = recorder.outcome
    recorder.call(engine.stop, SECONDS["stop"])
    if phase != "stop":
        recorder.outcome = outcome if outcome != "no error" else recorder.outcome
    assert role == "agent" or victim.pid not in {
        process.pid for process in process_tree.descendants(os.getpid())
    }


def test_errors_name_the_phase(cells: list[Cell]) -> None:
    outcomes = [
        cell.outcome
        for cell in cells
        if cell.outcome.startswith(tuple(kind.__name__ for kind in ChildError.__subclasses__()))
    ]
    assert all("[" in outcome for outcome in outcomes)
