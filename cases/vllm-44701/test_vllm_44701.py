"""vllm#44701: a salt keeps caches apart, also from those of adapters."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import Adapter, AtWork, Server

pytestmark = [
    pytest.mark.vllm_case("vllm-44701"),
    pytest.mark.vllm_requires(vllm=">=0.9"),  # earlier ones have no cache_salt
    pytest.mark.vllm_engine(
        front="serve",
        generation="V1",
        fresh=True,
        extra={"enable_lora": True, "max_lora_rank": 8, "enable_prefix_caching": True},
        server_options={"enable_prompt_tokens_details": True},
    ),
]
PROMPT = "one two three four five six seven eight nine ten " * 4


def test_salt_named_like_an_adapter(vllm_server: Server, vllm_at_work: AtWork) -> None:
    vllm_server.load_adapter(Adapter("mine", rank=4))
    first, again = (vllm_server.cached_tokens(PROMPT, model="mine") for _ in range(2))
    apart = vllm_server.cached_tokens(PROMPT, cache_salt="other")
    vllm_at_work("an adapter finds its own blocks, another salt does not", first == apart == 0 < again)
    shared = vllm_server.cached_tokens(PROMPT, cache_salt="mine")
    assert shared == 0, f"{shared} tokens of an adapter's cache serve the base model, whose salt is the adapter's name"
    vllm_server.check()
