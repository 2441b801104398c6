"""vllm-project/vllm#22178: vLLM cannot be imported with transformers 4.54"""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe

pytestmark = pytest.mark.vllm_case("vllm-22178")


@pytest.mark.vllm_requires(vllm=">=0.9")  # the first release with a configuration for Ovis
def test_vllms_configurations_are_imported(vllm_probe: Probe, vllm_at_work: AtWork) -> None:
    vllm_at_work("vLLM has a configuration for Ovis", vllm_probe("has_ovis"))
    names = vllm_probe("configurations")
    assert "OvisConfig" in names, f"expected OvisConfig, got {', '.join(names)}"
