"""vllm#25794: a chat template in a request must not keep the server from answering others."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import Server

# Each range is as long as Jinja's sandbox allows; nested, they take days.
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}"


@pytest.mark.vllm_case("vllm-25794")
@pytest.mark.vllm_engine(front="serve", generation="V1", fresh=True)
def test_template_of_a_request(vllm_server: Server, vllm_leg: str) -> None:
    body = {
        "model": vllm_server.model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 4,
        "chat_template": (LOOPS if vllm_leg == "subject" else "") + "Hello",
    }
    vllm_server.post("/v1/chat/completions", body, timeout=15)  # any status is fine
    vllm_server.check()
