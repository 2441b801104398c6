"""vllm#16643: a request id that is not a string is accepted or rejected, and the engine keeps working."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AsyncEngine


@pytest.mark.vllm_case("vllm-16643")
# In 0.7.0 to 0.7.2 the same error ends the engine's process instead.
@pytest.mark.vllm_requires(vllm=">=0.7.3", cause="failure")
@pytest.mark.vllm_engine(front="async", generation="V1", fresh=True)
def test_numeric_request_id(vllm_engine: AsyncEngine, vllm_leg: str) -> None:
    request_id = 704975.485514209 if vllm_leg == "subject" else "704975.485514209"
    assert vllm_engine.call("tokens_for", request_id=request_id, timeout=15)
    vllm_engine.check()
