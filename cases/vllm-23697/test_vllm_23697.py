"""vllm-project/vllm#23697: a request id that is used again at once kills the engine"""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AsyncEngine, AtWork, Script

pytestmark = pytest.mark.vllm_case("vllm-23697")


# The outputs of a step are handled one by one, as they are above 128 requests, so that a request can end between two of them.
@pytest.mark.vllm_engine(front="async", generation="V1", env={"VLLM_V1_OUTPUT_PROC_CHUNK_SIZE": "1"})
def test_an_id_is_used_again_at_once(vllm_engine: AsyncEngine, vllm_at_work: AtWork, vllm_leg: str) -> None:
    (plain,) = vllm_engine.generate("Hello", {"max_tokens": 4, "ignore_eos": True})
    vllm_at_work("a plain request is answered", len(plain[-1]["outputs"][0]["token_ids"]) == 4)
    second_id = "same" if vllm_leg == "subject" else "second"
    prompt = Script.text("one STOP and much more after it").prompt("Count.")
    answer = vllm_engine.call("take_over_id", prompt=prompt, stop="STOP", second_id=second_id)
    vllm_engine.check()
    assert answer == {"reason": "STOP", "again": 200, "own": 400}, f"the requests are answered with {answer}"
