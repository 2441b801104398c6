"""vllm-project/vllm#45807: /v1/messages never reports that a stop sequence ended the answer"""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Script, Server

pytestmark = [pytest.mark.vllm_case("vllm-45807"), pytest.mark.vllm_engine(front="serve", generation="V1")]


def test_matched_stop_sequence_is_reported(vllm_server: Server, vllm_at_work: AtWork) -> None:
    """An answer that a stop sequence cuts names that sequence, instead of a natural end."""
    content = Script.text("one STOP two").prompt("Count.")
    body = {"model": vllm_server.model, "max_tokens": 40, "messages": [{"role": "user", "content": content}]}
    answer = vllm_server.post("/v1/messages", {**body, "stop_sequences": ["STOP"]})
    vllm_at_work("the message is answered", answer.status_code == 200)
    message = answer.json()
    text = "".join(block["text"] for block in message["content"])
    vllm_at_work("the stop sequence cut the answer", text == "one ")
    told = (message["stop_reason"], message.get("stop_sequence"))  # null fields are left out
    assert told == ("stop_sequence", "STOP"), f"stop_reason and stop_sequence are {told}"
