"""vllm#54839: what was unloaded is gone from the engine, too."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import Adapter, AsyncEngine, AtWork

pytestmark = [
    pytest.mark.vllm_case("vllm-54839"),
    pytest.mark.vllm_requires(vllm=">=0.9"),  # the engine tells which adapters it holds
    pytest.mark.vllm_engine(
        front="async", generation="V1", fresh=True, extra={"enable_lora": True, "max_lora_rank": 8}
    ),
]


def test_unloaded_adapter(vllm_engine: AsyncEngine, vllm_at_work: AtWork) -> None:
    found = vllm_engine.call("load_and_unload", name="mine", path=vllm_engine.adapter_path(Adapter("mine", rank=4)))
    vllm_engine.check()
    at_work = found["loaded"] == [1] and found["served"] == [] and found["removed"] == []
    vllm_at_work("it was loaded, is served no more, and the engine can let it go", at_work)
    assert found["held"] == [], f"the engine still holds {found['held']} after mine was unloaded"
