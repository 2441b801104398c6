"""vllm#34468: a token id too large for any tokenizer must be answered with a 4xx status."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Server

pytestmark = [pytest.mark.vllm_case("vllm-34468"), pytest.mark.vllm_engine(front="serve")]


@pytest.mark.parametrize("token", [2**63, 2**200])
def test_huge_token_id_is_rejected(vllm_server: Server, vllm_at_work: AtWork, token: int) -> None:
    small = vllm_server.post("/detokenize", {"model": vllm_server.model, "tokens": [65]})
    vllm_at_work("an ordinary token id is detokenized", small.status_code == 200 and small.json()["prompt"])
    answer = vllm_server.post("/detokenize", {"model": vllm_server.model, "tokens": [token]})
    assert 400 <= answer.status_code < 500, (
        f"expected a 4xx for a huge token id, got {answer.status_code}: {answer.text[:500]}"
    )
    vllm_server.check()
