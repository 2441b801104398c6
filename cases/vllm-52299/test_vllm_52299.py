"""vllm-project/vllm#52299: SIGTERM while the model loads must end the workers, too."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe

# The first release that was tried; older ones start their workers differently.
pytestmark = [pytest.mark.vllm_case("vllm-52299"), pytest.mark.vllm_requires(vllm=">=0.13")]

WORKERS = 2
TIMEOUT_S = 20


def test_workers_end_with_their_server(vllm_probe: Probe, vllm_model_path: str, vllm_at_work: AtWork) -> None:
    reply = vllm_probe(
        "alive_after_sigterm",
        timeout=500,
        model=vllm_model_path,
        workers=WORKERS,
        start_s=400,
        timeout_s=TIMEOUT_S,
    )
    vllm_at_work("the workers were loading when the server got the signal", reply["loading"] == WORKERS)
    vllm_at_work("the server has ended", reply["status"] is not None)
    alive = len(reply["alive"])
    assert not alive, f"{alive} workers still alive {TIMEOUT_S} s after the server has ended"
