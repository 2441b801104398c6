"""vllm#37258: /v1/responses must answer a required tool call that max_output_tokens cuts."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Server

TOOL = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.mark.vllm_case("vllm-37258")
@pytest.mark.vllm_requires(vllm=">=0.11.1")  # the first whose /v1/responses takes tools of every model
@pytest.mark.vllm_engine(
    front="serve",
    generation="V1",
    server_options={"enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
)
def test_cut_call(vllm_server: Server, vllm_at_work: AtWork) -> None:
    body = {"model": vllm_server.model, "input": "The weather in Paris?", "max_output_tokens": 4}
    plain = vllm_server.post("/v1/responses", body)
    vllm_at_work("a text that is cut is answered", plain.status_code == 200 and plain.json()["output"])
    cut = vllm_server.post("/v1/responses", {**body, "tools": [TOOL], "tool_choice": "required"})
    assert cut.status_code == 200, (
        f"/v1/responses answers a required call that is cut with {cut.status_code}: {cut.text[:500]}"
    )
    vllm_server.check()
