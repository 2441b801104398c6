"""vllm-project/vllm#46240: a request aborted while its cache is received and sent kills the engine"""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AsyncEngine, AtWork

pytestmark = [
    pytest.mark.vllm_case("vllm-46240"),
    pytest.mark.vllm_requires(vllm=">=0.9"),  # connectors from a module of one's own
]


@pytest.mark.vllm_engine(
    front="async",
    generation="V1",
    import_path=["plugins"],
    extra={
        "kv_transfer_config": {
            "kv_connector": "TwoWays",
            "kv_connector_module_path": "two_ways",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"sends": True},
        }
    },
)
def test_a_request_is_aborted_while_its_cache_is_received(vllm_engine: AsyncEngine, vllm_at_work: AtWork) -> None:
    (plain,) = vllm_engine.generate("Hello", {"max_tokens": 4, "ignore_eos": True})
    vllm_at_work("a plain request is answered", len(plain[-1]["outputs"][0]["token_ids"]) == 4)
    assert vllm_engine.call("abort_while_receiving", prompt="a" * 100) == [4, 4]
    vllm_engine.check()
