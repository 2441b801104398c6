"""vllm-project/vllm#30220: an engine with data parallelism and adapters does not start"""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AsyncEngine, AtWork

pytestmark = pytest.mark.vllm_case("vllm-30220")


@pytest.mark.vllm_engine(front="async", generation="V1", dp=2, extra={"enable_lora": True})
def test_two_ranks_with_adapters_start(vllm_engine: AsyncEngine, vllm_at_work: AtWork) -> None:
    """Two data-parallel ranks start with adapters enabled, and answer."""
    (plain,) = vllm_engine.generate("Hello", {"max_tokens": 4, "ignore_eos": True})
    vllm_at_work("a plain request is answered", len(plain[-1]["outputs"][0]["token_ids"]) == 4)
    vllm_engine.check()
