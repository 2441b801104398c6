"""vllm-project/vllm#48310: /resume lets requests run while the engine sleeps"""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AsyncEngine, AtWork

pytestmark = pytest.mark.vllm_case("vllm-48310")


# Before 0.17 requests run during a sleep even without a resume (vllm-31618).
@pytest.mark.vllm_requires(vllm=">=0.17")
@pytest.mark.vllm_engine(front="async", generation="V1", fresh=True)
def test_a_resumed_engine_still_sleeps(vllm_engine: AsyncEngine, vllm_at_work: AtWork) -> None:
    """The method behind `/resume` must not start requests while the KV cache is released."""
    (plain,) = vllm_engine.generate("Hello", {"max_tokens": 4, "ignore_eos": True})
    vllm_at_work("a plain request is answered", len(plain[-1]["outputs"][0]["token_ids"]) == 4)
    seen = vllm_engine.call("tokens_after_resume")
    vllm_at_work("a request waits while the engine sleeps", seen["before"] == 0)
    vllm_at_work("the engine counts as asleep after it was resumed", seen["is_asleep"])
    vllm_at_work("the request is answered in the end", seen["tokens"] == 4)
    early = seen["early"]
    assert early == 0, f"{early} tokens after an engine was resumed in its sleep"
    vllm_engine.check()
