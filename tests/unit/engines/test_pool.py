"""Engine reuse, case by case (tests/fuzz/test_pool.py draws whole histories)."""

from __future__ import annotations

import pytest

from pytest_vllm_regress.engines.pool import EnginePool
from pytest_vllm_regress.engines.processes.child_processes import Leftover
from pytest_vllm_regress.errors import LimitExceeded
from tests.unit.engines.test_pool_states import FakeEngine

Charges = list[tuple[str, tuple[Leftover, ...]]]


@pytest.fixture
def charges() -> Charges:
    return []


@pytest.fixture
def pool(charges: Charges) -> EnginePool:
    return EnginePool(2, lambda user, left: charges.append((user, left)))


def acquire(pool: EnginePool, key: str, user: str) -> FakeEngine:
    engine = pool.acquire(key, user, lambda: FakeEngine(key))
    assert isinstance(engine, FakeEngine)
    return engine


def test_equal_keys_share_and_the_least_recently_used_goes(pool: EnginePool) -> None:
    a, b = acquire(pool, "a", "t1"), acquire(pool, "b", "t2")
    assert acquire(pool, "a", "t3") is a
    acquire(pool, "c", "t4")
    assert (a.alive, b.alive) == (True, False)
    assert acquire(pool, "a", "t5") is a


def test_what_fails_its_check_is_replaced_and_charged_to_its_last_user(
    pool: EnginePool, charges: Charges
) -> None:
    dead = acquire(pool, "a", "t1")
    dead.alive, dead.leaves = False, True
    assert acquire(pool, "a", "t2") is not dead
    assert charges == [("t1", (Leftover("process", "a"),))]


def test_an_engine_that_a_test_has_signalled_is_replaced_although_it_works_and_is_held(
    pool: EnginePool,
) -> None:
    signalled = acquire(pool, "a", "t1")
    pool.hold("a")
    signalled.spent = True
    assert acquire(pool, "a", "t2") is not signalled
    assert not signalled.alive
    last = acquire(pool, "a", "t3")
    last.spent = True
    pool.give_up("a")
    assert not last.alive


def test_an_engine_that_does_not_stop_is_a_leftover(pool: EnginePool, charges: Charges) -> None:
    acquire(pool, "a", "t1").stubborn = True
    pool.clear()
    ((user, (left,)),) = charges
    assert user == "t1"
    assert "engine that did not stop" in str(left)
    pool.drop("a")  # nothing happens


def test_engines_of_the_test_that_asks_are_not_stopped(pool: EnginePool) -> None:
    held = [acquire(pool, key, "t1") for key in "ab"]
    with pytest.raises(
        LimitExceeded,
        match="t1 asks for more engines at the same time than the 2 that --vllm-limit engines allows",
    ) as caught:
        acquire(pool, "c", "t1")
    assert caught.value.kind == "limit"
    assert all(engine.alive for engine in held)
    acquire(pool, "c", "t2")
    assert [engine.alive for engine in held] == [False, True]


def test_a_test_that_runs_again_may_start_other_engines(pool: EnginePool) -> None:
    first, held = (acquire(pool, key, "t1") for key in "ab")
    pool.hold("b")
    pool.release_all("t1")
    acquire(pool, "c", "t1")
    assert (first.alive, held.alive) == (False, True)


def test_what_is_held_is_not_stopped_for_others_nor_after_their_failures(pool: EnginePool) -> None:
    held = acquire(pool, "a", "factory")
    pool.hold("a")
    acquire(pool, "b", "t1")
    acquire(pool, "c", "t2")
    pool.give_up("a")  # a test that shares it has failed, and it still works
    assert held.alive
    pool.hold("c")
    with pytest.raises(LimitExceeded, match="2 are held by vllm_engines until they are released"):
        acquire(pool, "d", "t3")
    pool.release("a")
    acquire(pool, "c", "t4")
    acquire(pool, "d", "t5")
    assert not held.alive


def test_what_is_held_and_has_failed_is_given_up(pool: EnginePool) -> None:
    held = acquire(pool, "a", "factory")
    pool.hold("a")
    held.alive = False
    pool.give_up("a")
    assert len(pool) == 0


def test_a_discarded_engine_is_stopped_unless_somebody_holds_it(pool: EnginePool) -> None:
    acquire(pool, "a", "t1")
    pool.hold("a")
    pool.give_up("a")
    assert len(pool) == 1
    pool.release("a")
    pool.give_up("a")
    assert len(pool) == 0
    pool.give_up("never started")
