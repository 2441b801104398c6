"""vllm-project/vllm#51786: two connectors that load the cache of one request kill the engine"""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Engine, EngineSpec

pytestmark = [
    pytest.mark.vllm_case("vllm-51786"),
    pytest.mark.vllm_requires(vllm=">=0.11"),  # a MultiConnector of connectors from a module of one's own
]


def loads(steps: int) -> dict[str, Any]:
    return {
        "kv_connector": "Loads",
        "kv_connector_module_path": "two_loads",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"steps": steps},
    }


@pytest.fixture
def engine_spec(engine_spec: EngineSpec, vllm_leg: str) -> EngineSpec:
    second = loads(6 if vllm_leg == "subject" else 0)
    extra = {"connectors": [loads(1), second]}
    config = {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return engine_spec.merged_with({"extra": {"kv_transfer_config": config}})


@pytest.mark.vllm_engine(generation="V1", import_path=["plugins"])
def test_both_connectors_load_the_cache(vllm_engine: Engine, vllm_at_work: AtWork) -> None:
    (plain,) = vllm_engine.generate("Hello", {"max_tokens": 4, "ignore_eos": True})
    vllm_at_work("a plain request is answered", len(plain["outputs"][0]["token_ids"]) == 4)
    (result,) = vllm_engine.generate("a" * 100, {"max_tokens": 30, "ignore_eos": True})
    vllm_engine.check()
    count = len(result["outputs"][0]["token_ids"])
    assert count == 30, f"expected 30 tokens, got {count}"
