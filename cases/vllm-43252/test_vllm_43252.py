"""vllm#43252: --config=FILE means what --config FILE means."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe


@pytest.mark.vllm_case("vllm-43252")
def test_joined_option(vllm_probe: Probe, vllm_at_work: AtWork) -> None:
    vllm_at_work("the file is read after a space", vllm_probe("port_from_file", joined=False) == 1234)
    port = vllm_probe("port_from_file", joined=True)
    assert port == 1234, f"--config=FILE gives port {port}"
