"""vllm#28726: a request must be freed when nothing refers to it."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe


@pytest.mark.vllm_case("vllm-28726")
@pytest.mark.vllm_requires(vllm=">=0.10.2")  # a request takes other arguments before
def test_freed_at_once(vllm_probe: Probe, vllm_at_work: AtWork) -> None:
    plain = vllm_probe("kept", requests=20, caching=False)
    vllm_at_work("requests without prefix caching are freed at once", plain == {"kept": 0, "hashes": 0})
    cached = vllm_probe("kept", requests=20, caching=True)
    vllm_at_work("with prefix caching, their blocks have hashes", cached["hashes"] == 40)
    assert cached["kept"] == 0, f"{cached['kept']} of 20 requests are kept without a reference"
