"""The engine pool as a state machine, against engines that refuse to start, die and leave things
behind."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pytest_vllm_regress.engines.pool import EnginePool
from pytest_vllm_regress.engines.processes.child_processes import Leftover
from pytest_vllm_regress.errors import ChildDied, LimitExceeded, RemoteError

KEYS = st.sampled_from("abcd")
USERS = st.sampled_from(["test_1", "test_2", "test_3"])


@dataclasses.dataclass
class FakeEngine:
    key: str
    alive: bool = True
    stops: int = 0
    leaves: bool = False
    stubborn: bool = False
    spent: bool = False

    def check(self) -> None:
        if not self.alive:
            raise ChildDied("gone", phase="request")

    def stop(self, timeout: float | None = None) -> tuple[Leftover, ...]:
        self.stops += 1
        self.alive = False
        if self.stubborn:
            raise RemoteError("does not stop", phase="stop")
        return (Leftover("process", self.key),) if self.leaves else ()


class PoolMachine(RuleBasedStateMachine):
    """Compares the pool with a model: the engines in order of use, and the last user of each."""

    def __init__(self) -> None:
        super().__init__()
        self.engines: list[FakeEngine] = []
        self.model: dict[str, tuple[FakeEngine, str]] = {}
        self.charged: list[tuple[str, str]] = []
        self.expected: list[tuple[str, str]] = []

    @initialize(capacity=st.integers(0, 3))
    def make(self, capacity: int) -> None:
        self.capacity = max(1, capacity)
        self.pool: EnginePool = EnginePool(
            capacity,
            lambda user, left: self.charged.extend((user, str(leftover)) for leftover in left),
        )

    def _start(self, key: str) -> FakeEngine:
        assert sum(engine.alive for engine in self.engines) < self.capacity, (
            "room is made before an engine starts"
        )
        engine = FakeEngine(key)
        self.engines.append(engine)
        return engine

    def _forget(self, key: str) -> None:
        engine, user = self.model.pop(key)
        if engine.stubborn:
            self.expected.append((user, "engine that did not stop: [stop] does not stop"))
        elif engine.leaves:
            self.expected.append((user, f"process {engine.key}"))

    def _forget_for(self, user: str) -> bool:
        """Drop engines until there is room. Return False if ``user`` holds all of them."""
        while len(self.model) >= self.capacity:
            idle = next((key for key, (_, last) in self.model.items() if last != user), None)
            if idle is None:
                return False
            self._forget(idle)
        return True

    @rule(key=KEYS, user=USERS, fails=st.booleans())
    def acquire(self, key: str, user: str, fails: bool) -> None:
        known = self.model.get(key)
        if known is not None and known[0].alive:
            assert (
                self.pool.acquire(key, user, lambda: pytest.fail("a living engine is shared"))
                is known[0]
            )
            self.model[key] = (self.model.pop(key)[0], user)
            return
        if known is not None:
            self._forget(key)
        room = self._forget_for(user)

        def start() -> FakeEngine:
            engine = self._start(key)
            if fails:
                engine.alive = False
                raise RemoteError("cannot start", phase="start")
            return engine

        if not room:
            with pytest.raises(
                LimitExceeded,
                match=f"{user} asks for more engines .* than the {self.capacity} that --vllm-limit engines allows",
            ):
                self.pool.acquire(key, user, start)
        elif fails:
            with pytest.raises(RemoteError, match="cannot start"):
                self.pool.acquire(key, user, start)
        else:
            engine = self.pool.acquire(key, user, start)
            assert isinstance(engine, FakeEngine)
            self.model[key] = (engine, user)

    @rule(user=USERS)
    def make_room_for_a_fresh_one(self, user: str) -> None:
        if self._forget_for(user):
            self.pool.make_room(user)
            assert len(self.pool) < self.capacity
        else:
            with pytest.raises(LimitExceeded):
                self.pool.make_room(user)

    @rule(key=KEYS)
    def drop(self, key: str) -> None:
        if key in self.model:
            self._forget(key)
        self.pool.drop(key)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), fault=st.sampled_from(["alive", "leaves", "stubborn"]))
    def fault(self, data: st.DataObject, fault: str) -> None:
        engine, _ = self.model[data.draw(st.sampled_from(sorted(self.model)))]
        setattr(engine, fault, fault != "alive")

    @rule()
    def clear(self) -> None:
        for key in list(self.model):
            self._forget(key)
        self.pool.clear()
        assert len(self.pool) == 0

    @invariant()
    def engines_are_the_models(self) -> None:
        assert len(self.pool) == len(self.model) <= self.capacity
        assert self.charged == self.expected
        pooled = [engine for engine, _ in self.model.values()]
        for engine in self.engines:
            is_pooled = any(engine is other for other in pooled)
            assert engine.stops == 0 if is_pooled else engine.stops == 1 or not engine.alive
            assert engine.stops <= 1

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            self.clear()
            assert not any(engine.alive for engine in self.engines)


PoolMachine.TestCase.settings = settings(deadline=None, max_examples=100)
TestPool = PoolMachine.TestCase
