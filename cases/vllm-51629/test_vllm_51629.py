"""vllm#51629: the engine must not keep anything of an aborted request."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AsyncEngine, AtWork

# The attribute that the probe reads came with 0.8.
pytestmark = [
    pytest.mark.vllm_requires(vllm=">=0.8"),
    pytest.mark.vllm_engine(front="async", generation="V1", fresh=True),
]

ROUNDS = 5


def check(engine: AsyncEngine, n: int, by_id: bool, at_work: AtWork) -> None:
    reply = engine.call("held_after_aborts", n=n, rounds=ROUNDS, by_id=by_id)
    engine.check()
    at_work("requests were running when aborted, with a parent if n > 1", (reply["parents"] > 0) == (n > 1))
    held = reply["held"]
    assert held == 0, f"{held} of {ROUNDS} aborted requests are still held"


@pytest.mark.vllm_case("vllm-51629")
@pytest.mark.parametrize("n", [2, 8])
def test_aborted_by_id(vllm_engine: AsyncEngine, vllm_at_work: AtWork, n: int) -> None:
    check(vllm_engine, n, by_id=True, at_work=vllm_at_work)


@pytest.mark.vllm_case("vllm-51629", variant="cancelled")
def test_cancelled(vllm_engine: AsyncEngine, vllm_at_work: AtWork) -> None:
    check(vllm_engine, 8, by_id=False, at_work=vllm_at_work)


@pytest.mark.vllm_case("vllm-51629", variant="one")
def test_one_result(vllm_engine: AsyncEngine, vllm_at_work: AtWork) -> None:
    check(vllm_engine, 1, by_id=True, at_work=vllm_at_work)
