"""vllm-project/vllm#52693: a turn of a streamed session that ends twice kills the engine"""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AsyncEngine, AtWork, Script

pytestmark = pytest.mark.vllm_case("vllm-52693")


@pytest.mark.vllm_engine(front="async", generation="V1")
def test_a_turn_of_a_session_has_no_tokens(vllm_engine: AsyncEngine, vllm_at_work: AtWork) -> None:
    (plain,) = vllm_engine.generate("Hello", {"max_tokens": 1})
    vllm_at_work("a plain request is answered", plain[-1]["finished"])
    turns = [Script.text(text).prompt("A question. ") for text in ("one", "", "three")]
    reasons = vllm_engine.call("continue_session", prompts=turns, max_tokens=20, timeout=60)
    vllm_engine.check()
    assert reasons == ["stop", "stop", "stop"], f"the turns ended with {reasons}"
