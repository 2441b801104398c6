"""vllm-project/vllm#49118: with KV offloading, aborting a request that waits for blocks kills the engine"""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Engine

pytestmark = pytest.mark.vllm_case("vllm-49118")
CHUNK = 256  # tokens that are offloaded together: the running request has fewer, so that nothing is copied


@pytest.mark.vllm_requires(vllm=">=0.15")  # the first in which the option for offloaded blocks counts bytes
@pytest.mark.vllm_engine(
    generation="V1",
    env={"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
    extra={
        "max_model_len": 320,
        "num_gpu_blocks_override": 24,
        "kv_transfer_config": {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"block_size": CHUNK, "cpu_bytes_to_use": 1 << 24},
        },
    },
)
def test_a_request_that_waits_for_blocks_is_aborted(vllm_engine: Engine, vllm_at_work: AtWork) -> None:
    (plain,) = vllm_engine.generate("Hello", {"max_tokens": 4, "ignore_eos": True})
    vllm_at_work("a plain request is answered", len(plain["outputs"][0]["token_ids"]) == 4)
    seen = vllm_engine.call("abort_while_waiting", running="a" * 200, waiting="b" * 300)
    vllm_at_work("the second request waited for blocks", seen["waited"] == 1)
    assert seen["finished"] == ["running"], f"finished: {seen['finished']}"
    vllm_engine.check()
