"""vllm#17567: the scheduler must keep nothing of a finished request."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Engine

REQUESTS = 20


@pytest.mark.vllm_case("vllm-17567")
@pytest.mark.vllm_engine(generation="V1", fresh=True, env={"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
def test_kept(vllm_engine: Engine, vllm_at_work: AtWork) -> None:
    results = vllm_engine.generate(["Hello"] * REQUESTS, {"max_tokens": 6, "ignore_eos": True})
    names = [result["request_id"] for result in results]
    vllm_at_work("all requests are finished", all(len(result["outputs"][0]["token_ids"]) == 6 for result in results))
    vllm_engine.check()  # one more step, in which the last requests are forgotten
    kept = vllm_engine.call("kept", names=names)
    assert not kept, f"the scheduler keeps {kept} of {REQUESTS} finished requests"
