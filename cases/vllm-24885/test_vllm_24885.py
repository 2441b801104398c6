"""vllm-project/vllm#24885: streams are cut at SIGTERM."""

from __future__ import annotations

import signal

import httpx
import pytest
from packaging.version import Version

from pytest_vllm_regress import AtWork, EngineSpec, Server, Target

# Before 0.8 the V1 engine ignores `scheduler_cls`, so the stream would end before the signal arrives.
pytestmark = [pytest.mark.vllm_case("vllm-24885"), pytest.mark.vllm_requires(vllm=">=0.8")]
TOKENS = 100


@pytest.fixture
def engine_spec(engine_spec: EngineSpec, vllm_env: Target) -> EngineSpec:
    """Ask for draining where this vLLM can do it."""
    if Version(vllm_env.versions["vllm"]) < Version("0.18"):
        return engine_spec
    return engine_spec.merged_with({"extra": {"shutdown_timeout": 30}})


@pytest.mark.vllm_engine(
    front="serve", generation="V1", import_path=["plugins"], extra={"scheduler_cls": "slow_scheduler.SlowScheduler"}
)
def test_a_stream_is_finished_after_sigterm(vllm_server: Server, vllm_leg: str, vllm_at_work: AtWork) -> None:
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
