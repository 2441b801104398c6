"""vllm#42125: an adapter whose weights have changed must not get the cache of its old weights."""

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


def test_new_weights_at_the_same_path(vllm_server: Server, vllm_at_work: AtWork, tmp_path: Path) -> None:
    def cached(name: str, seed: int, replace: bool = False) -> int:
        vllm_server.load_adapter(Adapter(name, rank=4, seed=seed), folder=tmp_path / name, replace=replace)
        return vllm_server.cached_tokens(PROMPT, model=name)

    first, repeated = cached("mine", 1), vllm_server.cached_tokens(PROMPT, model="mine")
    vllm_at_work(
        "an adapter finds its own blocks, and another adapter does not", first == cached("other", 2) == 0 < repeated
    )
    stale = cached("mine", 3, replace=True)
    assert stale == 0, f"the new weights reuse {stale} cached tokens of the old ones"
    vllm_server.check()
