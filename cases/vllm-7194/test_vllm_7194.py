"""vllm#7194: an answer must fit its schema, however the model is distributed over processes."""

from __future__ import annotations

import json

import jsonschema
import pytest

from pytest_vllm_regress import AsyncEngine, AtWork

# Earlier releases do not answer at all (vllm#7557); V0 of 0.10 accepts any schema and ignores it.
pytestmark = pytest.mark.vllm_requires(vllm=">=0.8.5,!=0.10.*", cause="failure")

SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}


def ask(engine: AsyncEngine, seed: int, at_work: AtWork) -> None:
    (streamed,) = engine.generate(
        "Hello", {"max_tokens": 60, "seed": seed, "structured_outputs": {"json": SCHEMA}}, timeout=60
    )
    text = streamed[-1]["outputs"][0]["text"]
    engine.check()
    at_work("the schema determines the first token", text.startswith("{"))
    try:
        jsonschema.validate(json.loads(text), SCHEMA)
    except (ValueError, jsonschema.ValidationError) as error:
        pytest.fail(f"expected JSON that fits the schema, got {text!r}: {str(error).splitlines()[0]}")


@pytest.mark.vllm_case("vllm-7194")
@pytest.mark.vllm_engine(front="async", generation="V0", executor="mp", pipeline_parallel_size=2)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_pipeline(vllm_engine: AsyncEngine, vllm_at_work: AtWork, seed: int) -> None:
    ask(vllm_engine, seed, vllm_at_work)


@pytest.mark.vllm_case("vllm-7194", variant="v1")
@pytest.mark.vllm_engine(front="async", generation="V1", executor="mp", pipeline_parallel_size=2)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_pipeline_in_v1(vllm_engine: AsyncEngine, vllm_at_work: AtWork, seed: int) -> None:
    ask(vllm_engine, seed, vllm_at_work)


@pytest.mark.vllm_case("vllm-7194", variant="tp")
@pytest.mark.vllm_engine(front="async", generation=["V0", "V1"], executor="mp", tensor_parallel_size=2)
def test_tensor_parallel(vllm_engine: AsyncEngine, vllm_at_work: AtWork) -> None:
    ask(vllm_engine, 1, vllm_at_work)
