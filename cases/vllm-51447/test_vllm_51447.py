"""vllm#51447: the number of stop strings of a request has a limit."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Script, Server


@pytest.mark.vllm_case("vllm-51447")
@pytest.mark.vllm_engine(front="serve", generation="V1")
def test_stop_strings(vllm_server: Server, vllm_at_work: AtWork) -> None:
    body = {"model": vllm_server.model, "prompt": Script.text("one two three").prompt("Count"), "max_tokens": 30}
    few = vllm_server.post("/v1/completions", {**body, "stop": ["two"]})
    vllm_at_work("a stop string ends the text", few.json()["choices"][0]["text"] == "one ")
    many = vllm_server.post("/v1/completions", {**body, "stop": [f"never {number}" for number in range(5000)]})
    assert many.status_code == 400, f"5000 stop strings are accepted with {many.status_code}"
    vllm_server.check()
