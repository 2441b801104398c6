"""vllm#20627: sleep discards the KV cache, so no cached tokens may be reported afterwards."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AsyncEngine, AtWork


@pytest.mark.vllm_case("vllm-20627")
@pytest.mark.vllm_requires(vllm=">=0.9")  # earlier V1 engines do not report cached tokens
@pytest.mark.vllm_engine(front="async", generation="V1", fresh=True, extra={"enable_prefix_caching": True})
def test_asleep_between_two_requests(vllm_engine: AsyncEngine, vllm_at_work: AtWork) -> None:
    awake = vllm_engine.call("cached_tokens", prompt="a" * 100, sleeps=False)
    vllm_at_work("a repeated prompt is found in the cache", awake)
    cached = vllm_engine.call("cached_tokens", prompt="b" * 100, sleeps=True)
    vllm_engine.check()
    assert not cached, f"expected no cached tokens after sleep, got {cached}"
