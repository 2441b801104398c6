"""vllm#48115: any text must be usable as a choice."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Engine

# V1 of 0.7 silently ignores a schema.
pytestmark = [
    pytest.mark.vllm_requires(vllm=">=0.8"),
    pytest.mark.vllm_engine(structured_output_backend="xgrammar", generation="V1"),
]


def ask(engine: Engine, choices: list[str], at_work: AtWork) -> None:
    (plain,) = engine.generate("Hello", {"max_tokens": 40, "structured_outputs": {"choice": ["yes", "no"]}})
    at_work("choices determine the answer", plain["outputs"][0]["text"] in ("yes", "no"))
    try:
        (answer,) = engine.generate("Hello", {"max_tokens": 40, "structured_outputs": {"choice": choices}})
        text = answer["outputs"][0]["text"]
        assert text in choices, f"{text!r} is not one of {choices}"
    finally:
        engine.check()


@pytest.mark.vllm_case("vllm-48115")
@pytest.mark.parametrize("choice", ["no\nplease", "no\x00please", "\n"], ids=["newline", "nul", "only-newline"])
def test_control_characters(vllm_engine: Engine, vllm_at_work: AtWork, choice: str) -> None:
    ask(vllm_engine, ["yes", choice], vllm_at_work)


@pytest.mark.vllm_case("vllm-48115", variant="plain")
def test_plain(vllm_engine: Engine, vllm_at_work: AtWork) -> None:
    ask(vllm_engine, ["yes", "no", "a\tb", 'say "no"', "back\\slash"], vllm_at_work)
