"""vllm#42125: an adapter whose weights have changed starts with no cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress import Adapter, AtWork, Server

pytestmark = [
    pytest.mark.vllm_case("vllm-42125"),
    pytest.mark.vllm_engine(
        front="serve",
        generation="V1",
        fresh=True,
        extra={"enable_lora": True, "max_lora_rank": 8, "enable_prefix_caching": True},
        server_options={"enable_prompt_tokens_details": True},
    ),
]
PROMPT = "ten nine eight seven six five four three two one " * 4


def test_new_weights_under_the_same_path(vllm_server: Server, vllm_at_work: AtWork, tmp_path: Path) -> None:
    def cached(seed: int, folder: str) -> int:
        vllm_server.load_adapter(Adapter("mine", rank=4, seed=seed), folder=tmp_path / folder, replace=seed > 1)
        return vllm_server.cached_tokens(PROMPT, model="mine")

    first, again = cached(1, "one"), vllm_server.cached_tokens(PROMPT, model="mine")
    elsewhere = cached(2, "two")
    vllm_at_work("an adapter finds its own blocks, one from another path does not", first == elsewhere == 0 < again)
    stale = cached(3, "two")
    assert stale == 0, f"{stale} tokens of the old weights' cache serve the new ones"
    vllm_server.check()
