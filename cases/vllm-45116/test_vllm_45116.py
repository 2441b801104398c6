"""vllm#45116: a temperature must be finite."""

from __future__ import annotations

import json

import httpx
import pytest

from pytest_vllm_regress import AtWork, Server


@pytest.mark.vllm_case("vllm-45116")
@pytest.mark.vllm_engine(front="serve", generation="V1")
@pytest.mark.parametrize("value", ["NaN", "Infinity"])
def test_not_finite(vllm_server: Server, vllm_at_work: AtWork, value: str) -> None:
    def ask(temperature: str) -> httpx.Response:
        text = f'{{"model": {json.dumps(vllm_server.model)}, "prompt": "Hello", "max_tokens": 4, "temperature": {temperature}}}'
        headers = {"Content-Type": "application/json"}
        return vllm_server.client.post("/v1/completions", content=text, headers=headers, timeout=60)

    plain = vllm_server.post(
        "/v1/completions", {"model": vllm_server.model, "prompt": "Hello", "max_tokens": 4, "temperature": 2}
    )
    vllm_at_work("a finite temperature is accepted", plain.status_code == 200 and plain.json()["choices"])
    vllm_at_work("a negative one is rejected", ask("-5").status_code == 400)
    answer = ask(value)
    assert 400 <= answer.status_code < 500, f"a temperature of {value} is answered with {answer.status_code}"
    vllm_server.check()
