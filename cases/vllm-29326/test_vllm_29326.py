"""vllm#29326: a constraint that is not supported must not be ignored."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Server

GUIDED = {
    "guided_choice": ["yes", "no"],
    "guided_json": {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]},
}


@pytest.mark.vllm_case("vllm-29326")
@pytest.mark.vllm_engine(front="serve", generation="V1")
@pytest.mark.parametrize("name", GUIDED)
def test_guided(vllm_server: Server, vllm_at_work: AtWork, name: str) -> None:
    def begins(text: str) -> bool:
        return text.lstrip().startswith("{") if name == "guided_json" else text in ("yes", "no")

    body = {"model": vllm_server.model, "messages": [{"role": "user", "content": "Well?"}], "max_tokens": 30}
    plain = vllm_server.post("/v1/chat/completions", {**body, "ignore_eos": True})
    said = plain.json()["choices"][0]["message"]["content"]
    vllm_at_work("without a constraint the model says something else", said and not begins(said))
    answer = vllm_server.post("/v1/chat/completions", {**body, name: GUIDED[name]})
    if answer.status_code != 400:  # rejecting it is right, too
        text = answer.json()["choices"][0]["message"]["content"]
        assert begins(text), f"{name} is answered with {answer.status_code} and the unconstrained text {text!r}"
    vllm_server.check()
