"""vllm#44701: a cache salt must separate caches, including those of adapters."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import Adapter, AtWork, Server

pytestmark = [
    pytest.mark.vllm_case("vllm-44701"),
    pytest.mark.vllm_requires(vllm=">=0.9"),  # earlier releases have no cache_salt
    pytest.mark.vllm_engine(
        front="serve",
        generation="V1",
        fresh=True,
        extra={"enable_lora": True, "max_lora_rank": 8, "enable_prefix_caching": True},
        server_options={"enable_prompt_tokens_details": True},
    ),
]
PROMPT = "one two three four five six seven eight nine ten " * 4


def test_salt_equal_to_an_adapter_name(vllm_server: Server, vllm_at_work: AtWork) -> None:
    vllm_server.load_adapter(Adapter("mine", rank=4))
    first, repeated = (vllm_server.cached_tokens(PROMPT, model="mine") for _ in range(2))
    other = vllm_server.cached_tokens(PROMPT, cache_salt="other")
    vllm_at_work("an adapter finds its own blocks, and another salt does not", first == other == 0 < repeated)
    shared = vllm_server.cached_tokens(PROMPT, cache_salt="mine")
    assert shared == 0, f"the base model reuses {shared} cached tokens of the adapter that its salt is named after"
    vllm_server.check()
