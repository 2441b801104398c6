"""vllm#51795: a negative token id must be rejected like one beyond the vocabulary."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Server

pytestmark = [pytest.mark.vllm_case("vllm-51795"), pytest.mark.vllm_engine(front="serve", task="embed")]


@pytest.mark.parametrize("token", [-1, -320])
def test_negative_token(vllm_server: Server, vllm_at_work: AtWork, vllm_leg: str, token: int) -> None:
    def embed(*tokens: int) -> tuple[int, str]:
        answer = vllm_server.post("/v1/embeddings", {"model": vllm_server.model, "input": [list(tokens)]})
        return answer.status_code, answer.text[:300]

    known, beyond = embed(65, 66)[0], embed(65, 10**6)[0]
    vllm_at_work("known tokens are accepted, and one beyond the vocabulary is rejected", (known, beyond) == (200, 400))
    if vllm_leg == "subject":
        status, text = embed(65, token)
        assert 400 <= status < 500, f"expected a 4xx for token {token}, got {status}: {text}"
    vllm_server.check()
