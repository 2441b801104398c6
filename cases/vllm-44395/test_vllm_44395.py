"""vllm-project/vllm#44395: requests run while the KV cache is still asleep"""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AsyncEngine, AtWork

# Before 0.8.3 the V1 engine cannot wake up in parts.
pytestmark = [pytest.mark.vllm_case("vllm-44395"), pytest.mark.vllm_requires(vllm=">=0.8.3")]


@pytest.mark.vllm_engine(front="async", generation="V1", fresh=True)
def test_a_request_waits_for_the_kv_cache(vllm_engine: AsyncEngine, vllm_at_work: AtWork) -> None:
    (plain,) = vllm_engine.generate("Hello", {"max_tokens": 4, "ignore_eos": True})
    vllm_at_work("a plain request is answered", len(plain[-1]["outputs"][0]["token_ids"]) == 4)
    seen = vllm_engine.call("tokens_in_partial_wake")
    vllm_at_work("the engine counts as asleep without its KV cache", seen["is_asleep"])
    vllm_at_work("the request is answered in the end", seen["tokens"] == 4)
    assert not seen["early"], f"{seen['early']} tokens were generated while the KV cache was asleep"
    vllm_engine.check()
