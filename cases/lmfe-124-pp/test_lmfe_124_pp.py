"""lm-format-enforcer#124 as users met it: PP=2 hangs on a request with a schema, TP=2 answers it."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AsyncEngine

# Earlier releases hang with any lm-format-enforcer: vLLM's own tokenizer wrapper could not be pickled either (vllm#7557).
# V0 of 0.10 takes any schema and ignores it.
pytestmark = pytest.mark.vllm_requires(vllm=">=0.8.5,!=0.10.*")

SAMPLING = {
    "max_tokens": 24,
    "seed": 1,
    "structured_outputs": {
        "json": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        "backend": "lm-format-enforcer",
    },
}

# What is pickled where workers are forked is so where they are spawned, as vLLM does once CUDA is in use; there their arguments are, too.
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
    # Only that it ends. What it says is wrong even on 0.8.5: each step sends the state as it was at the start (vllm#7194).
    assert ask(vllm_engine)


@pytest.mark.vllm_case("lmfe-124-pp", variant="tp")
@pytest.mark.vllm_engine(front="async", generation="V0", executor="mp", tensor_parallel_size=2, fresh=True)
def test_tensor_parallel_workers_need_no_state(vllm_engine: AsyncEngine) -> None:
    assert '"a"' in ask(vllm_engine)
