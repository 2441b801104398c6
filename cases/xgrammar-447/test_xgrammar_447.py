"""mlc-ai/xgrammar#447: masks must apply to bfloat16 and float16 logits on the CPU."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe

pytestmark = pytest.mark.vllm_case("xgrammar-447")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_logits_are_masked(vllm_probe: Probe, vllm_at_work: AtWork, dtype: str) -> None:
    vllm_at_work("a mask applies to float32 logits", vllm_probe("masked", dtype="float32") == [3])
    allowed = vllm_probe("masked", dtype=dtype)
    assert allowed == [3], f"expected token 3 alone in {dtype}, got {allowed}"
