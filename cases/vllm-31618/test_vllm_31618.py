"""vllm-project/vllm#31618: requests go on running while the engine sleeps"""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AsyncEngine, AtWork

# Before 0.8 the V1 engine does not say whether it sleeps.
pytestmark = [pytest.mark.vllm_case("vllm-31618"), pytest.mark.vllm_requires(vllm=">=0.8")]


@pytest.mark.vllm_engine(front="async", generation="V1", fresh=True)
def test_nothing_runs_while_the_engine_sleeps(vllm_engine: AsyncEngine, vllm_at_work: AtWork) -> None:
    (plain,) = vllm_engine.generate("Hello", {"max_tokens": 4, "ignore_eos": True})
    vllm_at_work("a plain request is answered", len(plain[-1]["outputs"][0]["token_ids"]) == 4)
    seen = vllm_engine.call("tokens_while_asleep")
    vllm_at_work("a request was running", seen["before"])
    vllm_at_work("the engine slept", seen["is_asleep"])
    assert not seen["asleep"], f"{seen['asleep']} tokens were generated while the engine was asleep"
    vllm_engine.check()
