"""vllm#36197: the error for too large a max_tokens must name the real limits."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Server


@pytest.mark.vllm_case("vllm-36197")
@pytest.mark.vllm_engine(front="serve", generation="V1")
def test_message(vllm_server: Server, vllm_at_work: AtWork) -> None:
    body: dict[str, Any] = {"model": vllm_server.model, "prompt": "Hello", "max_tokens": 4}
    plain = vllm_server.post("/v1/completions", body)
    vllm_at_work("a small number is accepted", plain.status_code == 200 and plain.json()["choices"])
    answer = vllm_server.post("/v1/completions", {**body, "max_tokens": 10**6})
    vllm_at_work("a large one is refused", answer.status_code == 400)
    assert "-999488" not in answer.text, f"the message names a negative length: {answer.text}"
    vllm_server.check()
