"""vllm#55510: when the API server is killed, its engine must end too."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe

# Before 0.7 the server does not start on a simulated device.
pytestmark = [
    pytest.mark.vllm_case("vllm-55510"),
    pytest.mark.vllm_requires(vllm=">=0.7", cause="harness"),
]

TIMEOUT_S = 30


def test_engine_ends_with_its_server(vllm_probe: Probe, vllm_model_path: str, vllm_at_work: AtWork) -> None:
    reply = vllm_probe("alive_after_kill", timeout=240, model=vllm_model_path, timeout_s=TIMEOUT_S)
    vllm_at_work("the server was healthy and had child processes when it was killed", reply["family"])
    alive = reply["alive"]
    assert not alive, f"{', '.join(alive)} still alive {TIMEOUT_S} s after the server was killed"
