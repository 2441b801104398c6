"""vllm#33709: /v1/responses must not fail with the format json_object."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Script, Server


@pytest.mark.vllm_case("vllm-33709")
@pytest.mark.vllm_engine(front="serve", generation="V1")
def test_json_object(vllm_server: Server, vllm_at_work: AtWork) -> None:
    body = {"model": vllm_server.model, "input": Script.text("four").prompt("2 + 2?"), "max_output_tokens": 20}
    plain = vllm_server.post("/v1/responses", {**body, "text": {"format": {"type": "text"}}})
    vllm_at_work("the format text is accepted", plain.json()["output"][-1]["content"][0]["text"] == "four")
    answer = vllm_server.post("/v1/responses", {**body, "input": "2 + 2?", "text": {"format": {"type": "json_object"}}})
    assert answer.status_code == 200, f"json_object is answered with {answer.status_code}: {answer.text[:300]}"
    vllm_server.check()
