"""vllm#30931: another adapter under a name that was used before starts with no cache."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import Adapter, AtWork, Server

pytestmark = [
    pytest.mark.vllm_case("vllm-30931"),
    pytest.mark.vllm_engine(
        front="serve",
        generation="V1",
        fresh=True,
        extra={"enable_lora": True, "max_lora_rank": 8, "enable_prefix_caching": True},
        server_options={"enable_prompt_tokens_details": True},
    ),
]
PROMPT = "one two three four five six seven eight nine ten " * 4


def test_another_adapter_of_the_same_name(vllm_server: Server, vllm_at_work: AtWork) -> None:
    vllm_server.load_adapter(Adapter("mine", rank=4, seed=1))
    vllm_server.load_adapter(Adapter("yours", rank=4, seed=2))
    first, again = (vllm_server.cached_tokens(PROMPT, model="mine") for _ in range(2))
    apart = vllm_server.cached_tokens(PROMPT, model="yours")
    vllm_at_work("an adapter finds its own blocks, one of another name does not", first == apart == 0 < again)
    vllm_server.unload_adapter("mine")
    vllm_server.load_adapter(Adapter("mine", rank=4, seed=3))
    stale = vllm_server.cached_tokens(PROMPT, model="mine")
    assert stale == 0, f"{stale} tokens of the unloaded adapter's cache serve the new one"
    vllm_server.check()
