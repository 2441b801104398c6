"""vllm-project/vllm#30237: the last event of a stream of /v1/responses lacks all but the end of the output"""

from __future__ import annotations

import json

import pytest

from pytest_vllm_regress import AtWork, Script, Server

pytestmark = pytest.mark.vllm_case("vllm-30237")
TEXT = "Paris is the capital of France. " * 9  # so long that it does not arrive in one chunk


@pytest.mark.vllm_requires(vllm=">=0.10.2", cause="failure")  # in 0.10.1 the stream breaks off
@pytest.mark.vllm_engine(front="serve", generation="V1", max_model_len=1024)
def test_the_last_event_has_the_whole_output(vllm_server: Server, vllm_at_work: AtWork) -> None:
    body = {"model": vllm_server.model, "input": Script.text(TEXT).prompt("Capital?"), "max_output_tokens": 400}
    whole = vllm_server.post("/v1/responses", body).json()
    vllm_at_work("the answer without streaming has the text", whole["output"][0]["content"][0]["text"] == TEXT)
    answer = vllm_server.post("/v1/responses", {**body, "stream": True})
    assert answer.status_code == 200, f"expected status 200, got {answer.status_code}: {answer.text[:500]}"
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    streamed = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    vllm_at_work("the text is streamed", streamed == TEXT)
    output = events[-1]["response"]["output"]
    text = "".join(part["text"] for item in output for part in item["content"])
    assert text == TEXT, f"the last event of the stream has {len(text)} of {len(TEXT)} characters"
    vllm_server.check()
