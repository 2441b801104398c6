"""vllm#47845: the number of prompts in a request has a limit."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Server


@pytest.mark.vllm_case("vllm-47845")
@pytest.mark.vllm_engine(front="serve", generation="V1")
def test_prompts(vllm_server: Server, vllm_at_work: AtWork) -> None:
    body = {"model": vllm_server.model, "max_tokens": 1}
    few = vllm_server.post("/v1/completions", {**body, "prompt": ["a"] * 3})
    vllm_at_work("three prompts are answered", few.status_code == 200 and len(few.json()["choices"]) == 3)
    many = vllm_server.post("/v1/completions", {**body, "prompt": ["a"] * 1500})
    assert many.status_code == 400, f"1500 prompts in one request are answered with {many.status_code}"
    vllm_server.check()
