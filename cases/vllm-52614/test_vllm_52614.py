"""vllm#52614: lm-format-enforcer's integration must import beside the vLLM that pins it."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import Probe, Server

pytestmark = pytest.mark.vllm_case("vllm-52614")

SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}


def test_integration_imports(vllm_probe: Probe) -> None:
    assert "build_vllm_logits_processor" in vllm_probe("offered_by_the_integration")


@pytest.mark.vllm_requires(
    vllm=">=0.14"
)  # 0.12 and 0.13 have the same fault and show it otherwise: the request never ends
@pytest.mark.vllm_engine(front="serve", structured_output_backend="lm-format-enforcer", fresh=True)
def test_request_with_a_schema(vllm_server: Server) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    answer = vllm_server.chat([{"role": "user", "content": "Hello"}], max_tokens=40, response_format=schema)
    assert answer["choices"][0]["message"]["content"]
