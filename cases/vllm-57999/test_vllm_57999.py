"""vllm#57999: the cancellation of a finished background response must not call it synchronous."""

from __future__ import annotations

import time

import pytest

from pytest_vllm_regress import AtWork, Script, Server


@pytest.mark.vllm_case("vllm-57999")
@pytest.mark.vllm_engine(front="serve", generation="V1", env={"VLLM_ENABLE_RESPONSES_API_STORE": "1"})
def test_cancel_a_finished_response(vllm_server: Server, vllm_at_work: AtWork) -> None:
    response = vllm_server.respond(Script.text("yes").prompt("Are you there?"), background=True)
    path = f"/v1/responses/{response['id']}"
    deadline = time.monotonic() + 30
    while response["status"] in ("queued", "in_progress") and time.monotonic() < deadline:
        time.sleep(0.1)
        response = vllm_server.get(path).json()
    texts = [part["text"] for item in response["output"] for part in item["content"]]
    vllm_at_work("the background response is complete", response["status"] == "completed" and texts == ["yes"])
    answer = vllm_server.post(f"{path}/cancel", {})
    # OpenAI's API returns a finished response as it is. An error with the right reason is accepted, too.
    assert answer.text and "synchronous" not in answer.text, (
        f"expected the response or an error for a finished one, got {answer.status_code}: {answer.text[:500]}"
    )
    assert answer.is_error or answer.json()["id"] == response["id"], f"expected the response, got {answer.text[:500]}"
    vllm_server.check()
