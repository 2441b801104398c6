"""vllm#55152: with the guidance backend, too, a request may require a call of a tool."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from pytest_vllm_regress import AtWork, Server

PARAMETERS = {"type": "object", "properties": {"loud": {"type": "boolean"}}, "required": ["loud"]}
TOOL = {"type": "function", "function": {"name": "ring", "parameters": PARAMETERS}}


@pytest.mark.vllm_case("vllm-55152")
# 0.8.4 is the first whose V1 engine answers with the guidance backend. 0.10.1 and 0.10.2 cannot stream a call with line breaks.
@pytest.mark.vllm_requires(vllm=">=0.8.4,!=0.10.1.*,!=0.10.2")
@pytest.mark.vllm_engine(
    front="serve",
    generation="V1",
    structured_output_backend="guidance",
    server_options={"enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
)
def test_required_call(vllm_server: Server, vllm_at_work: AtWork) -> None:
    body = {"model": vllm_server.model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 60}

    def ask(**options: Any) -> httpx.Response:
        return vllm_server.post("/v1/chat/completions", {**body, **options})

    schema = {"type": "json_schema", "json_schema": {"name": "loud", "schema": PARAMETERS}}
    vllm_at_work("the backend keeps to a schema", ask(response_format=schema).status_code == 200)
    vllm_at_work("the tool may be called", ask(tools=[TOOL], tool_choice="auto").status_code == 200)
    # A stream, because some releases answer with an error if max_tokens cuts off the call of a complete answer.
    stream = ask(tools=[TOOL], tool_choice="required", stream=True).text
    assert '"error"' not in stream, f"expected a call of the tool, got {stream[:300]}"
    vllm_server.check()
