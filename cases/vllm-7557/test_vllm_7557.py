"""vllm#7557: under pipeline parallelism a request with a schema must end."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AsyncEngine

pytestmark = pytest.mark.vllm_requires(vllm="!=0.10.*", cause="failure")  # V0 of 0.10 accepts any schema and ignores it

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
SAMPLING = {"max_tokens": 24, "seed": 1, "structured_outputs": {"json": SCHEMA, "backend": "lm-format-enforcer"}}

# vLLM spawns workers once CUDA is in use. What is pickled for forked workers is pickled for spawned ones too, along with their arguments.
START_METHODS = [{}, {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}]


def ask(engine: AsyncEngine) -> str:
    engine.generate("Hello", {"max_tokens": 4}, timeout=60)  # a plain request works everywhere
    (streamed,) = engine.generate("Hello", SAMPLING, timeout=20)
    return str(streamed[-1]["outputs"][0]["text"])


@pytest.mark.vllm_case("vllm-7557")
@pytest.mark.vllm_engine(
    front="async", generation="V0", executor="mp", pipeline_parallel_size=2, env=START_METHODS, fresh=True
)
def test_pipeline_stages_get_the_request(vllm_engine: AsyncEngine) -> None:
    assert ask(vllm_engine)  # assert only that the request ends: its text is the subject of vllm-7194


@pytest.mark.vllm_case("vllm-7557", variant="tp")
@pytest.mark.vllm_engine(front="async", generation="V0", executor="mp", tensor_parallel_size=2, fresh=True)
def test_tensor_parallel_workers_need_no_request(vllm_engine: AsyncEngine) -> None:
    assert '"a"' in ask(vllm_engine)
