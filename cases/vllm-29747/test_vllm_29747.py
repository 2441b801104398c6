"""vllm#29747: the results of one request have the same priority and arrival time, which must not kill the engine."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AsyncEngine

TOGETHER = 8  # the children of a request are compared only while they are queued


@pytest.mark.vllm_case("vllm-29747")
@pytest.mark.vllm_requires(vllm=">=0.9")  # the first release whose V1 engine supports priorities
@pytest.mark.vllm_engine(front="async", generation="V1", fresh=True, extra={"scheduling_policy": "priority"})
def test_several_results(vllm_engine: AsyncEngine, vllm_leg: str) -> None:
    n = 2 if vllm_leg == "subject" else 1
    for streamed in vllm_engine.generate(["Hello"] * TOGETHER, {"n": n, "max_tokens": 4}, output_kind="final_only"):
        assert {output["index"] for output in streamed[-1]["outputs"]} == set(range(n))
    vllm_engine.check()
