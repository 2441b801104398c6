"""vllm#37952: the number of results of a request must have a limit."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe


@pytest.mark.vllm_case("vllm-37952")
def test_limit(vllm_probe: Probe, vllm_at_work: AtWork) -> None:
    vllm_at_work(
        "eight results are accepted, and none is not", vllm_probe("refusal", n=8) is None and vllm_probe("refusal", n=0)
    )
    refusal = vllm_probe("refusal", n=10**9)
    assert refusal and "at most" in refusal, f"{10**9} results are accepted ({refusal})"
