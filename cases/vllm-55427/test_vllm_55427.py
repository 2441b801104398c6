"""vllm#55427: a prompt of max_model_len tokens must be embedded, in as many steps as needed."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import Server

MAX_LENGTH, STEP = 64, 32


@pytest.mark.vllm_case("vllm-55427")
@pytest.mark.vllm_engine(
    front="serve",
    task="embed",
    generation="V1",
    max_model_len=MAX_LENGTH,
    fresh=True,
    extra={"max_num_batched_tokens": STEP, "max_num_seqs": 8, "enable_chunked_prefill": True},
)
def test_longest_prompt(vllm_server: Server, vllm_leg: str) -> None:
    length = MAX_LENGTH if vllm_leg == "subject" else MAX_LENGTH - 1
    (vector,) = vllm_server.embed("x" * length, timeout=15)
    assert vector
    vllm_server.check()
