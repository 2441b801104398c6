"""vllm-project/vllm#50948: with enable_in_reasoning, the answer that follows a schema is returned as reasoning"""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Script, Server

pytestmark = pytest.mark.vllm_case("vllm-50948")
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
ANSWER = '{"a": true}'


@pytest.mark.vllm_engine(
    front="serve",
    generation="V1",
    server_options={"reasoning_parser": "qwen3"},
    extra={"structured_outputs_config": {"enable_in_reasoning": True, "backend": "xgrammar"}},
)
def test_json_is_the_answer(vllm_server: Server, vllm_at_work: AtWork) -> None:
    format_ = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    body = {
        "model": vllm_server.model,
        "messages": [{"role": "user", "content": Script.text(ANSWER).prompt("JSON?")}],
        "max_tokens": 60,
        "response_format": format_,
    }
    answer = vllm_server.post("/v1/chat/completions", body)
    vllm_at_work("the request is answered with the JSON", "true" in answer.text)
    message = answer.json()["choices"][0]["message"]
    assert message["content"] == ANSWER, f"expected the JSON as the answer, got {message['content']!r}"
