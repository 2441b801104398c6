"""vllm-project/vllm#49135: a request that is aborted before it is scheduled adds the uptime of the host to latency histograms"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pytest_vllm_regress import AtWork, Server

# Before 0.12 a server cannot be paused.
pytestmark = [pytest.mark.vllm_case("vllm-49135"), pytest.mark.vllm_requires(vllm=">=0.12")]


@pytest.mark.vllm_engine(
    front="serve",
    generation="V1",
    fresh=True,
    max_model_len=32768,
    extra={"max_num_seqs": 1},
    env={"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"},
)
def test_prefill_takes_no_longer_than_the_test(vllm_server: Server, vllm_at_work: AtWork) -> None:
    """`/pause` aborts one request that runs and one that waits. Neither may add more time than has passed."""
    begin = time.monotonic()
    body = {"model": vllm_server.model, "prompt": "Hello", "max_tokens": 32000, "ignore_eos": True}
    plain = vllm_server.post("/v1/completions", {**body, "max_tokens": 4})
    answered = plain.status_code == 200 and plain.json()["usage"]["completion_tokens"] == 4
    vllm_at_work("a plain request is answered", answered)
    with ThreadPoolExecutor() as pool:
        pending = [pool.submit(vllm_server.post, "/v1/completions", body) for _ in range(2)]
        vllm_at_work("one request runs and one waits", one_runs_and_one_waits(vllm_server))
        paused = vllm_server.post("/pause", {})
        ends = [future.result().json()["choices"][0]["finish_reason"] for future in pending]
    vllm_at_work("a pause aborts both", paused.status_code == 200 and ends == ["abort", "abort"])
    vllm_server.post("/resume", {})
    vllm_server.check()
    prefill = vllm_server.metrics().total("vllm:request_prefill_time_seconds_sum")
    passed = time.monotonic() - begin
    assert 0 < prefill <= passed, f"{prefill:.0f} s of prefill were counted within {passed:.0f} s"


def one_runs_and_one_waits(server: Server) -> bool:
    """Wait until the metrics show it."""
    limit = time.monotonic() + 30
    while time.monotonic() < limit:
        metrics = server.metrics()
        if metrics.total("vllm:num_requests_running") == 1 == metrics.total("vllm:num_requests_waiting"):
            return True
        time.sleep(0.02)
    return False
