"""Real engines on the simulated device: each process killed or stopped, in each phase."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from pytest_vllm_regress.engines.engine import Engine
from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.settings import Settings
from pytest_vllm_regress.engines.spec import EngineSpec
from pytest_vllm_regress.engines.target import Target
from pytest_vllm_regress.errors import ChildError
from pytest_vllm_regress.processes import family
from pytest_vllm_regress.util.deadline import Deadline
from tests.faults.ledger import Cell, Seen, cell

pytestmark = [pytest.mark.engine, pytest.mark.faults]
SPEC = EngineSpec.create(tensor_parallel_size=2, executor="mp", generation="V1")
SECONDS = {"import": 240.0, "start": 30.0, "ready": 30.0, "request": 4.0, "stop": 8.0, "probe": 10.0}
LONG = {"max_tokens": 480, "ignore_eos": True, "n": 8}
ROLES = ("engine process", "engine core", "worker", "nanny", "agent")


class Rig:
    """One warm agent, many engines."""

    def __init__(self) -> None:
        settings = Settings(environments=("vllm-0.8.5",), device="sim")
        self.session = Session(settings, lambda phase, seconds: Deadline.after(phase, seconds or SECONDS[phase]))
        self.target: Target = self.session.target("vllm-0.8.5")
        self.start().stop()

    def start(self, timeout: float | None = None) -> Engine:
        return self.session.engine(self.target, SPEC, user="faults", fresh=True, timeout=timeout)

    @property
    def agents(self) -> frozenset[int]:
        """The warm agents, which outlive their engines."""
        return frozenset(agent._process.pid for agent in self.session._agents.values() if agent._process is not None)

    def following(self) -> None:
        engine = self.start()
        engine.check()
        engine.stop()


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.session.close()


def find(rig: Rig, role: str, nannies: frozenset[int]) -> psutil.Process | None:
    """The process in ``role`` of the engine that came after ``nannies``, once it is there."""
    if role == "agent":
        return psutil.Process(min(rig.agents))
    new = [each for agent in rig.agents for each in psutil.Process(agent).children() if each.pid not in nannies]
    chain: list[psutil.Process] = new[:1]
    for _ in ("engine process", "engine core", "worker"):
        below = (
            [each for each in chain[-1].children() if "resource_tracker" not in " ".join(each.cmdline())]
            if chain
            else []
        )
        chain += below[:1] or []
    at = {"nanny": 0, "engine process": 1, "engine core": 2, "worker": 3}[role]
    return chain[at] if len(chain) > at else None


def nannies(rig: Rig) -> frozenset[int]:
    return frozenset(each.pid for agent in rig.agents for each in psutil.Process(agent).children())


def wait_for(condition: Callable[[], psutil.Process | None], seconds: float = 25.0) -> psutil.Process:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            found = condition()
        except psutil.Error:
            found = None
        if found is not None:
            return found
        time.sleep(0.002)  # another program's process tree has no event to wait for
    raise AssertionError("the process to harm never came")


def busy(process: psutil.Process) -> Callable[[], psutil.Process | None]:
    """The process, once it has worked for a while from now on."""
    before = sum(process.cpu_times()[:2])
    return lambda: process if sum(process.cpu_times()[:2]) > before + 0.03 else None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.replace(" ", "-"))
@pytest.mark.parametrize("phase", ["start", "idle", "request", "stop"])
def test_process(rig: Rig, cells: list[Cell], phase: str, role: str, number: signal.Signals) -> None:
    before = nannies(rig)
    agent = psutil.Process(min(rig.agents))
    fault = f"{role} {'killed' if number == signal.SIGKILL else 'stopped'}"
    with cell(cells, rig.session.run, "engine on sim", fault, phase, spared=lambda: rig.agents) as seen:
        if phase == "start":
            harm_at_start(rig, role, number, before, seen)
        else:
            engine = rig.start()
            harm(rig, engine, phase, role, number, before, seen)
        if role == "agent":  # a stopped one is ended by its user; the next engine gets another
            family.end([agent], grace_s=0)
        seen.following(rig.following)


def harm_at_start(rig: Rig, role: str, number: signal.Signals, before: frozenset[int], seen: Seen) -> None:
    allowed = 6.0
    thread = threading.Thread(target=lambda: wait_for(lambda: find(rig, role, before)).send_signal(number))
    thread.start()
    seen.call(lambda: rig.start(allowed).stop(), allowed + (SECONDS["stop"] if role == "agent" else 0))
    thread.join()


def harm(
    rig: Rig, engine: Engine, phase: str, role: str, number: signal.Signals, before: frozenset[int], seen: Seen
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
        seen.call(lambda: engine.generate(["a"] * 32, LONG), SECONDS["request"])
        thread.join()
    else:
        victim.send_signal(number)
        if phase == "idle":
            seen.call(lambda: engine.generate("a", {"max_tokens": 1}), SECONDS["request"])
    outcome = seen.outcome
    seen.call(engine.stop, SECONDS["stop"])
    if phase != "stop":
        seen.outcome = outcome if outcome != "no error" else seen.outcome
    assert not [each for each in family.below(os.getpid()) if each.pid == victim.pid and role != "agent"]


def test_errors_name_the_phase(cells: list[Cell]) -> None:
    """Every error of a target that was seen says in which phase it was."""
    seen = [
        each.outcome
        for each in cells
        if each.outcome.startswith(tuple(kind.__name__ for kind in ChildError.__subclasses__()))
    ]
    assert all("[" in outcome for outcome in seen)
