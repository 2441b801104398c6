"""vllm-project/vllm#45596: every request is answered with status 500 with fastapi 0.137"""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe

pytestmark = pytest.mark.vllm_case("vllm-45596")


def test_a_request_reaches_its_endpoint(vllm_probe: Probe, vllm_at_work: AtWork) -> None:
    vllm_at_work("both packages are installed", vllm_probe("versions"))
    status = vllm_probe("status_of", path="/version")
    assert status == 200, f"expected status 200, got {status}"
