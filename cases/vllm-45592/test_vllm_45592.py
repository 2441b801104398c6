"""vllm#45592: a backend must reject a constraint that it cannot enforce, not ignore it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Engine, RemoteError

# V1 of 0.7 silently ignores a schema.
pytestmark = pytest.mark.vllm_requires(vllm=">=0.8")

LENGTH = {"type": "string", "maxLength": 2}
BACKENDS = pytest.mark.vllm_engine(structured_output_backend=["xgrammar", "auto"], generation="V1")


def ask(engine: Engine, schema: dict[str, Any], at_work: AtWork) -> None:
    (plain,) = engine.generate("Hello", {"max_tokens": 8, "structured_outputs": {"json": {"type": "boolean"}}})
    at_work("a schema determines the answer", plain["outputs"][0]["text"] in ("true", "false"))
    sampling = {"max_tokens": 40, "n": 8, "structured_outputs": {"json": schema}}
    try:
        answers = [engine.generate("Hello", {**sampling, "seed": seed})[0] for seed in range(0, 64, 8)]
    except RemoteError as error:
        assert "support" in str(error), error  # xgrammar may reject the schema; auto chooses another backend
        engine.check()
        return
    for text in (output["text"] for answer in answers for output in answer["outputs"]):
        complete = text.endswith('"') and len(text) > 1  # else truncated at max_tokens
        value = json.loads(text, strict=False) if complete else text.removeprefix('"')
        value = re.sub("\ufffd+", "?", value)  # a model may choose the bytes of a character that cannot be decoded
        assert len(value) <= 2, f"expected at most 2 characters, got {value!r}"


@pytest.mark.vllm_case("vllm-45592")
@pytest.mark.vllm_engine(structured_output_backend="auto", generation="V1")
def test_pattern_with_length(vllm_engine: Engine, vllm_at_work: AtWork) -> None:
    ask(vllm_engine, {**LENGTH, "pattern": "^a+$"}, vllm_at_work)


@pytest.mark.vllm_case("vllm-45592", variant="xgrammar")
@pytest.mark.vllm_engine(structured_output_backend="xgrammar", generation="V1")
def test_pattern_with_length_for_xgrammar(vllm_engine: Engine, vllm_at_work: AtWork) -> None:
    ask(vllm_engine, {**LENGTH, "pattern": "^a+$"}, vllm_at_work)


@pytest.mark.vllm_case("vllm-45592", variant="length")
@BACKENDS
def test_length_alone(vllm_engine: Engine, vllm_at_work: AtWork) -> None:
    ask(vllm_engine, LENGTH, vllm_at_work)
