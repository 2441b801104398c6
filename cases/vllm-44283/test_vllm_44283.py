"""vllm#44283: /v1/messages must accept messages of the role system."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Script, Server


@pytest.mark.vllm_case("vllm-44283")
@pytest.mark.vllm_requires(vllm=">=0.11.1")  # the first with /v1/messages
@pytest.mark.vllm_engine(front="serve", generation="V1")
def test_system(vllm_server: Server, vllm_at_work: AtWork) -> None:
    user = {"role": "user", "content": Script.text("Rome.").prompt("Capital of Italy?")}
    body = {"model": vllm_server.model, "messages": [user], "max_tokens": 20}
    plain = vllm_server.post("/v1/messages", {**body, "system": "Be short."})
    vllm_at_work("system beside the messages is accepted", plain.json()["content"][0]["text"] == "Rome.")
    answer = vllm_server.post("/v1/messages", {**body, "messages": [{"role": "system", "content": "Be short."}, user]})
    assert answer.status_code == 200, (
        f"a message of the role system is answered with {answer.status_code}: {answer.text[:300]}"
    )
    vllm_server.check()
