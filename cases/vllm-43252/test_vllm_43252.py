"""vllm#43252: --config=FILE must mean the same as --config FILE."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe


@pytest.mark.vllm_case("vllm-43252")
def test_option_with_equals_sign(vllm_probe: Probe, vllm_at_work: AtWork) -> None:
    vllm_at_work("--config FILE reads the file", vllm_probe("frontend:port_from_file", joined=False) == 1234)
    port = vllm_probe("frontend:port_from_file", joined=True)
    assert port == 1234, f"--config=FILE gives port {port}"
