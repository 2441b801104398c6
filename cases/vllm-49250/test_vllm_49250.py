"""vllm-project/vllm#49250: blocks that a KV connector cannot load are computed instead, and the answer is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress import AtWork, EngineSpec, Server

# Before 0.11.1 no connector can say that a load failed. The policy exists from 0.13 on; before that, requests are always recomputed.
pytestmark = [pytest.mark.vllm_case("vllm-49250"), pytest.mark.vllm_requires(vllm=">=0.11.1")]
PROMPT = "A prompt of several blocks. " * 4 + "!"
LOST = 2  # the third block of the prompt cannot be loaded


@pytest.fixture
def engine_spec(engine_spec: EngineSpec, tmp_path: Path, vllm_leg: str) -> EngineSpec:
    """A server that saves and loads blocks in a folder; in the control leg without asynchronous scheduling."""
    connector = {
        "kv_connector": "SharedConnector",
        "kv_connector_module_path": "vllm_regress_target.sim.connectors.shared",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"folder": str(tmp_path), "lost": [LOST]},
        "kv_load_failure_policy": "recompute",
    }
    return engine_spec.replace(
        extra={
            "async_scheduling": vllm_leg == "subject",
            "kv_transfer_config": connector,
        }
    )


@pytest.mark.vllm_engine(front="serve", generation="V1")
def test_a_block_that_is_not_loaded_is_computed(vllm_server: Server, vllm_at_work: AtWork, tmp_path: Path) -> None:
    def complete(**transfer: Any) -> dict[str, Any]:
        body = {"model": vllm_server.model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "logprobs": 0}
        return vllm_server.post("/v1/completions", {**body, **transfer}, timeout=20).json()  # type: ignore[no-any-return]

    def events(name: str) -> int:
        return [json.loads(line)["event"] for line in (tmp_path / "events.jsonl").read_text().splitlines()].count(name)

    # Each request has a salt of its own, so that no block comes from the server's own cache.
    expected = complete(cache_salt="alone")["choices"][0]["logprobs"]["tokens"]
    saved = complete(cache_salt="save", kv_transfer_params={"do_remote_decode": True})
    vllm_at_work("the blocks of the prompt were saved", events("saved") > LOST)
    answer = complete(cache_salt="load", kv_transfer_params=saved["kv_transfer_params"])
    vllm_at_work("a block was lost", events("failed") == 1)
    tokens = answer["choices"][0]["logprobs"]["tokens"]
    assert tokens == expected, f"expected the tokens {expected}, got {tokens}"
