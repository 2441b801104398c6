"""vllm#30636: a result must name the adapter of its request."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import Adapter, AtWork, Engine


@pytest.mark.vllm_case("vllm-30636")
@pytest.mark.vllm_engine(generation="V1", extra={"enable_lora": True, "max_loras": 1})
def test_adapter(vllm_engine: Engine, vllm_at_work: AtWork) -> None:
    adapter = Adapter("night", seed=1)
    result = vllm_engine.call("generate", name=adapter.name, path=vllm_engine.adapter_path(adapter))
    vllm_at_work("the request with the adapter is answered", result["tokens"] == 4)
    assert result["adapter"] == adapter.name, f"the result names the adapter {result['adapter']}"
    vllm_engine.check()
