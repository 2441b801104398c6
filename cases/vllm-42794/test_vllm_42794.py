"""vllm-project/vllm#42794: a request whose client has gone must not be answered as if it had succeeded."""

from __future__ import annotations

import re
import time

import httpx
import pytest

from pytest_vllm_regress import AtWork, Server

# Before 0.8 the V1 engine ignores `scheduler_cls`, so the request would finish before its client disconnects.
pytestmark = [pytest.mark.vllm_case("vllm-42794"), pytest.mark.vllm_requires(vllm=">=0.8", cause="harness")]
GOES_AFTER_S = 1
TOKENS = 400  # at 20 ms each


def answers(server: Server, least: int) -> list[tuple[str, str]]:
    """Wait for at least ``least`` logged answers. Return the status and body of each."""
    limit = time.monotonic() + 30
    while True:
        found = re.findall(r"answered (\w+) with (b.*)$", server.log(), re.MULTILINE)
        if len(found) >= least or time.monotonic() > limit:
            return found
        time.sleep(0.05)


@pytest.mark.vllm_engine(
    front="serve",
    generation="V1",
    import_path=["plugins"],
    extra={"scheduler_cls": "slow_scheduler.SlowScheduler"},
    server_options={"middleware": ["answers.Answers"]},
)
def test_client_goes(vllm_server: Server, vllm_at_work: AtWork) -> None:
    """The client's own limit ends its connection while the request runs."""
    body = {"model": vllm_server.model, "prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
    complete = vllm_server.post("/v1/completions", body)
    answered = complete.status_code == 200 and complete.json()["usage"]["completion_tokens"] == 4
    vllm_at_work("a request is answered, and the answer logged", answered and len(answers(vllm_server, 1)) == 1)
    with pytest.raises(httpx.ReadTimeout):
        vllm_server.client.post(
            "/v1/completions", json={**body, "max_tokens": TOKENS}, timeout=httpx.Timeout(60, read=GOES_AFTER_S)
        )
    logged = answers(vllm_server, 2)
    vllm_at_work("the server has finished with the request", len(logged) == 2)
    status, text = logged[1]
    assert text != "b'null'", f"the client has gone, and the server answers {status} with {text}"
    vllm_server.check()
