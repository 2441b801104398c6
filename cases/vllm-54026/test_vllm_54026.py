"""vllm-project/vllm#54026: structured_outputs that is not an object gets status 500"""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Server

pytestmark = pytest.mark.vllm_case("vllm-54026")


@pytest.mark.vllm_requires(vllm=">=0.11")  # earlier releases have no structured_outputs and ignore the key
@pytest.mark.vllm_engine(front="serve", generation="V1")
def test_vllm_54026(vllm_server: Server, vllm_at_work: AtWork) -> None:
    """Send structured_outputs as an object, and as a number."""
    body = {"model": vllm_server.model, "prompt": "Hello", "max_tokens": 20}
    right = vllm_server.post("/v1/completions", {**body, "structured_outputs": {"choice": ["yes"]}})
    vllm_at_work("a choice is obeyed", right.status_code == 200 and right.json()["choices"][0]["text"] == "yes")
    answer = vllm_server.post("/v1/completions", {**body, "structured_outputs": 1})
    assert answer.status_code < 500, f"structured_outputs 1: status {answer.status_code}: {answer.text[:500]}"
    vllm_server.check()  # the server still works
