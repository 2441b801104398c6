"""vllm-project/vllm#53066: a stop string ends the answer inside the reasoning"""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Script, Server

pytestmark = pytest.mark.vllm_case("vllm-53066")
ANSWER = "<think>one STOP two</think>three"  # before 0.7.3 the parser needs the opening tag, too


@pytest.mark.vllm_engine(front="serve", server_options={"reasoning_parser": "deepseek_r1"})
def test_a_stop_string_in_the_reasoning(vllm_server: Server, vllm_at_work: AtWork) -> None:
    body = {
        "model": vllm_server.model,
        "messages": [{"role": "user", "content": Script.text(ANSWER).prompt("2 + 1?")}],
        "max_tokens": 60,
    }
    plain = vllm_server.post("/v1/chat/completions", body).json()["choices"][0]["message"]
    vllm_at_work("without a stop string, the answer follows the reasoning", plain["content"] == "three")
    stopped = vllm_server.post("/v1/chat/completions", {**body, "stop": ["STOP"]}).json()["choices"][0]["message"]
    assert stopped["content"] == "three", f"expected the answer after the reasoning, got {stopped['content']!r}"
