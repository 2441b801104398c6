"""vllm#48098: /v1/responses must accept null for parallel_tool_calls."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Server


@pytest.mark.vllm_case("vllm-48098")
@pytest.mark.vllm_engine(front="serve", generation="V1")
def test_null(vllm_server: Server, vllm_at_work: AtWork) -> None:
    body: dict[str, Any] = {"model": vllm_server.model, "input": "Hello", "max_output_tokens": 4}
    plain = vllm_server.post("/v1/responses", {**body, "parallel_tool_calls": False})
    vllm_at_work("false is accepted", plain.status_code == 200 and plain.json()["output"])
    answer = vllm_server.post("/v1/responses", {**body, "parallel_tool_calls": None})
    assert answer.status_code == 200, f"null is answered with {answer.status_code}: {answer.text[:500]}"
    vllm_server.check()
