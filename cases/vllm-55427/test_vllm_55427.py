"""vllm#55427: a prompt of max_model_len tokens is pooled, in as many steps as it takes."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import Server

LONGEST, A_STEP = 64, 32


@pytest.mark.vllm_case("vllm-55427")
@pytest.mark.vllm_engine(
    front="serve",
    task="embed",
    generation="V1",
    max_model_len=LONGEST,
    fresh=True,
    extra={"max_num_batched_tokens": A_STEP, "max_num_seqs": 8, "enable_chunked_prefill": True},
)
def test_longest_prompt(vllm_server: Server, vllm_leg: str) -> None:
    length = LONGEST if vllm_leg == "subject" else LONGEST - 1
    (vector,) = vllm_server.embed("x" * length, timeout=15)
    assert vector
    vllm_server.check()
