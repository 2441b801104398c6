"""vllm-project/vllm#52398: /inference/v1/generate drops choices when n > 1"""

from __future__ import annotations

import pytest
from packaging.version import Version

from pytest_vllm_regress import AtWork, EngineSpec, Script, Server, Target

pytestmark = [pytest.mark.vllm_case("vllm-52398"), pytest.mark.vllm_engine(front="serve", generation="V1")]
N = 8


@pytest.fixture
def engine_spec(engine_spec: EngineSpec, vllm_env: Target) -> EngineSpec:
    """Enable the endpoint in releases that have it off by default."""
    if Version(vllm_env.versions["vllm"]) < Version("0.30"):
        return engine_spec
    return engine_spec.merged_with({"server_options": {"enable_scale_out": True}})


def test_every_choice_is_returned(vllm_server: Server, vllm_at_work: AtWork) -> None:
    """The answer contains all choices, also those that end before the last one."""
    scripts = [Script.text("ab" * length) for length in range(1, N + 1)]
    request = {"token_ids": vllm_server.tokenize(scripts[0].prompt("Hello", *scripts[1:]))}
    plain = vllm_server.post("/inference/v1/generate", {**request, "sampling_params": {"max_tokens": 40}})
    vllm_at_work("one choice is answered", plain.status_code == 200 and plain.json()["choices"][0]["token_ids"])
    answer = vllm_server.post("/inference/v1/generate", {**request, "sampling_params": {"max_tokens": 40, "n": N}})
    assert answer.status_code == 200, f"expected status 200, got {answer.status_code}: {answer.text[:500]}"
    choices = answer.json()["choices"]
    indices = sorted(choice["index"] for choice in choices)
    assert indices == list(range(N)), f"expected the choices {list(range(N))}, got {indices}"
    vllm_at_work("the choices differ in length", len({len(choice["token_ids"]) for choice in choices}) == N)
    vllm_server.check()
