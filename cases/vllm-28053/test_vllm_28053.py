"""vllm-project/vllm#28053: workers keep running after their engine core is killed"""

from __future__ import annotations

import signal
import time

import pytest

from pytest_vllm_regress import AtWork, Server

pytestmark = pytest.mark.vllm_case("vllm-28053")


@pytest.mark.vllm_engine(front="serve", generation="V1", tp=2)
def test_vllm_28053(vllm_server: Server, vllm_at_work: AtWork) -> None:
    """Kill the engine core, end the server, and look for the two workers."""
    body = {"model": vllm_server.model, "prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
    answer = vllm_server.post("/v1/completions", body)
    vllm_at_work("a request is answered", answer.status_code == 200 and answer.json()["choices"][0]["text"])
    workers = [process.pid for process in vllm_server.processes() if process.role == "worker"]
    vllm_at_work("there are two workers", len(workers) == 2)
    vllm_server.signal(signal.SIGKILL, "core")
    if any(process.alive and process.role == "server" for process in vllm_server.processes()):
        vllm_server.signal(signal.SIGTERM)  # some versions do not notice that the core is gone
    vllm_server.wait_for_exit(60)
    left = workers
    for _ in range(80):
        left = [process.pid for process in vllm_server.processes() if process.pid in workers and process.alive]
        if not left:
            break
        time.sleep(0.25)
    assert not left, f"20 s after the end of the server {len(left)} workers still run"
