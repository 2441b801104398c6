"""lm-format-enforcer#124 as seen by users: with PP=2 a request with a schema hangs, with TP=2 it is answered."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AsyncEngine

# Earlier releases hang with any lm-format-enforcer: vLLM's own tokenizer wrapper could not be pickled either (vllm#7557).
# V0 of 0.10 accepts any schema and ignores it.
pytestmark = pytest.mark.vllm_requires(vllm=">=0.8.5,!=0.10.*", cause="failure")

SAMPLING = {
    "max_tokens": 24,
    "seed": 1,
    "structured_outputs": {
        "json": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        "backend": "lm-format-enforcer",
    },
}

# vLLM spawns workers once CUDA is in use. What is pickled for forked workers is pickled for spawned ones too, along with their arguments.
START_METHODS = [{}, {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}]


def ask(engine: AsyncEngine) -> str:
    engine.generate("Hello", {"max_tokens": 4}, timeout=60)  # a plain request works everywhere
    (streamed,) = engine.generate("Hello", SAMPLING, timeout=20)
    return str(streamed[-1]["outputs"][0]["text"])


@pytest.mark.vllm_case("lmfe-124-pp")
@pytest.mark.vllm_engine(
    front="async", generation="V0", executor="mp", pipeline_parallel_size=2, env=START_METHODS, fresh=True
)
def test_pipeline_stages_get_the_state(vllm_engine: AsyncEngine) -> None:
    # Assert only that the request ends: its text is wrong even on 0.8.5, where every step sends the initial state (vllm#7194).
    assert ask(vllm_engine)


@pytest.mark.vllm_case("lmfe-124-pp", variant="tp")
@pytest.mark.vllm_engine(front="async", generation="V0", executor="mp", tensor_parallel_size=2, fresh=True)
def test_tensor_parallel_workers_need_no_state(vllm_engine: AsyncEngine) -> None:
    assert '"a"' in ask(vllm_engine)
