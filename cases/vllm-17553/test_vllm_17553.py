"""vllm#17553: top_k 0 turns top-k sampling off."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Script, Server


@pytest.mark.vllm_case("vllm-17553")
@pytest.mark.vllm_engine(front="serve", generation="V1")
def test_top_k(vllm_server: Server, vllm_at_work: AtWork) -> None:
    prompt = Script.text("Paris.").prompt("Capital of France?")
    body = {"model": vllm_server.model, "prompt": prompt, "max_tokens": 10}
    plain = vllm_server.post("/v1/completions", {**body, "top_k": -1})
    vllm_at_work("top_k -1 is accepted", plain.json()["choices"][0]["text"] == "Paris.")
    answer = vllm_server.post("/v1/completions", {**body, "top_k": 0})
    assert answer.status_code == 200, f"top_k 0 is answered with {answer.status_code}: {answer.text[:300]}"
    vllm_server.check()
