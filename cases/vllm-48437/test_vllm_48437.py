"""vllm#48437: an adapter without a positive rank must be rejected."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe


@pytest.mark.vllm_case("vllm-48437")
@pytest.mark.vllm_requires(vllm=">=0.7")  # the first with PEFTHelper.validate_legal
@pytest.mark.parametrize("rank", [0, -8])
def test_rank(vllm_probe: Probe, vllm_at_work: AtWork, rank: int) -> None:
    vllm_at_work("an ordinary rank is accepted", vllm_probe("refusal", rank=8) is None)
    refusal = vllm_probe("refusal", rank=rank)
    assert refusal and refusal.startswith("ValueError"), f"a rank of {rank} gives {refusal or 'a valid adapter'}"
