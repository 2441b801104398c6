"""vllm#52614: lm-format-enforcer's integration must be importable with the vLLM that pins it."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe, Server

pytestmark = pytest.mark.vllm_case("vllm-52614")

SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}


def test_integration(vllm_probe: Probe, vllm_model_path: str, vllm_at_work: AtWork) -> None:
    vllm_at_work("lm-format-enforcer itself can be imported", vllm_probe("is_importable"))
    assert vllm_probe("integrate", model=vllm_model_path) > 0


@pytest.mark.vllm_requires(vllm=">=0.14", cause="failure")  # in 0.12 and 0.13 the request never ends instead
@pytest.mark.vllm_engine(front="serve", structured_output_backend="lm-format-enforcer", fresh=True)
def test_request_with_a_schema(vllm_server: Server, vllm_at_work: AtWork) -> None:
    plain = vllm_server.chat([{"role": "user", "content": "Hello"}], max_tokens=4)
    vllm_at_work("a request without a schema is answered", plain["choices"])
    schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    answer = vllm_server.chat([{"role": "user", "content": "Hello"}], max_tokens=40, response_format=schema)
    assert answer["choices"][0]["message"]["content"]
