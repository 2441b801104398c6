"""vllm-project/vllm#11737: an error in the engine core makes the server kill itself"""

from __future__ import annotations

import httpx
import pytest

from pytest_vllm_regress import AtWork, Server

# Before 0.8 the V1 engine ignores `scheduler_cls`.
pytestmark = [pytest.mark.vllm_case("vllm-11737-sigkill"), pytest.mark.vllm_requires(vllm=">=0.8", cause="harness")]


@pytest.mark.vllm_engine(
    front="serve",
    generation="V1",
    import_path=["plugins"],
    extra={"scheduler_cls": "failing_scheduler.Failing"},
)
def test_vllm_11737_sigkill(vllm_server: Server, vllm_at_work: AtWork) -> None:
    """Let the engine core fail, and see whether the request is answered and how the server ends."""
    body = {"model": vllm_server.model, "prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
    answer = vllm_server.post("/v1/completions", body)
    vllm_at_work("a request is answered", answer.status_code == 200 and answer.json()["choices"][0]["text"])
    try:
        failed = vllm_server.client.post("/v1/completions", json={**body, "max_tokens": 77}, timeout=60)
        seen = f"status {failed.status_code}"
    except httpx.TransportError as error:
        seen = type(error).__name__  # the server broke the connection
    code = vllm_server.wait_for_exit(60)
    vllm_at_work("the engine core failed", "the scheduler of the test fails" in vllm_server.log())
    assert (seen, code) == ("status 500", 0), f"the request got {seen}, and the server ended with exit code {code}"
