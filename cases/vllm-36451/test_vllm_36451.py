"""vllm-project/vllm#36451: while the engine core is stopped, /health returns 200."""

from __future__ import annotations

import signal
import time

import httpx
import pytest

from pytest_vllm_regress import AtWork, Server

pytestmark = pytest.mark.vllm_case("vllm-36451")

# The proposed fix reads this limit, in seconds; its default is 60.
LIMIT_S = 3
WATCH_S = 10


@pytest.mark.vllm_engine(front="serve", generation="V1", env={"VLLM_HEALTH_CHECK_TIMEOUT": str(LIMIT_S)})
def test_health_fails_while_the_core_is_stopped(vllm_server: Server, vllm_at_work: AtWork) -> None:
    body = {"model": vllm_server.model, "prompt": "Hello", "max_tokens": 4}
    answer = vllm_server.post("/v1/completions", body)
    vllm_at_work("a request is answered", answer.status_code == 200 and "choices" in answer.json())
    vllm_at_work("a working server is healthy", vllm_server.get("/health").status_code == 200)
    vllm_server.signal(signal.SIGSTOP, "core")
    try:
        with pytest.raises(httpx.ReadTimeout):
            vllm_server.client.post("/v1/completions", json=body, timeout=3)
        statuses = _statuses(vllm_server)
    finally:
        vllm_server.signal(signal.SIGCONT, "core")
    assert any(status != 200 for status in statuses), f"/health still answers 200 after {WATCH_S} s"


def _statuses(server: Server) -> list[int]:
    """Return the statuses of /health until it fails or the time is over."""
    end = time.monotonic() + WATCH_S
    statuses = []
    while time.monotonic() < end and 503 not in statuses:
        statuses.append(server.get("/health").status_code)
        time.sleep(0.5)
    return statuses
