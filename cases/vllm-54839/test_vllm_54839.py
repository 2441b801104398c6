"""vllm#54839: an unloaded adapter must be removed from the engine too."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import Adapter, AsyncEngine, AtWork

pytestmark = [
    pytest.mark.vllm_case("vllm-54839"),
    pytest.mark.vllm_requires(vllm=">=0.10"),  # earlier engines do not list their adapters
    pytest.mark.vllm_engine(
        front="async", generation="V1", fresh=True, extra={"enable_lora": True, "max_lora_rank": 8}
    ),
]


def test_unloaded_adapter(vllm_engine: AsyncEngine, vllm_at_work: AtWork) -> None:
    adapters = vllm_engine.call("load_and_unload", name="mine", path=vllm_engine.adapter_path(Adapter("mine", rank=4)))
    vllm_engine.check()
    removable = adapters["loaded"] == [1] and adapters["served"] == [] and adapters["removed"] == []
    vllm_at_work("the adapter was loaded, is no longer served, and can be removed", removable)
    assert adapters["held"] == [], f"the engine still holds {adapters['held']} after the adapter was unloaded"
