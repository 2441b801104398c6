"""vllm-project/vllm#24885: streams are cut at SIGTERM."""

from __future__ import annotations

import signal

import httpx
import pytest

from pytest_vllm_regress import AtWork, EngineSpec, Server

pytestmark = pytest.mark.vllm_engine(
    front="serve", generation="V1", import_path=["plugins"], extra={"scheduler_cls": "slow_scheduler.SlowScheduler"}
)
TOKENS = 100


# Before 0.8 the V1 engine ignores `scheduler_cls`, so the stream would end before the signal arrives.
@pytest.mark.vllm_case("vllm-24885")
@pytest.mark.vllm_requires(vllm="<0.18")
@pytest.mark.vllm_requires(vllm=">=0.8", cause="harness")
def test_a_stream_is_finished_after_sigterm(vllm_server: Server, vllm_at_work: AtWork) -> None:
    finish_a_stream(vllm_server, vllm_at_work)


class TestDraining:
    @pytest.fixture
    def engine_spec(self, engine_spec: EngineSpec) -> EngineSpec:
        return engine_spec.merged_with({"extra": {"shutdown_timeout": 30}})

    @pytest.mark.vllm_case("vllm-24885", variant="draining")
    @pytest.mark.vllm_requires(vllm=">=0.18")
    def test_a_stream_is_finished_after_sigterm(self, vllm_server: Server, vllm_at_work: AtWork) -> None:
        finish_a_stream(vllm_server, vllm_at_work)


def finish_a_stream(vllm_server: Server, vllm_at_work: AtWork) -> None:
    """Send SIGTERM when the first part of a stream has arrived, and expect the rest."""
    plain = {"model": vllm_server.model, "prompt": "Hello", "max_tokens": 4}
    vllm_at_work("a plain request is answered", vllm_server.post("/v1/completions", plain).status_code == 200)
    body = {**plain, "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    chunks = []
    with vllm_server.client.stream("POST", "/v1/completions", json=body, timeout=60) as response:
        try:
            for line in response.iter_lines():
                chunks += [line] if line else []
                if len(chunks) == 1:
                    vllm_server.signal(signal.SIGTERM)
        except httpx.TransportError:
            pass
    vllm_at_work("tokens were streamed", any('"text":' in chunk for chunk in chunks))
    code = vllm_server.wait_for_exit(40)
    assert chunks[-1] == "data: [DONE]", f"cut after {len(chunks)} chunks"
    assert code == 0
