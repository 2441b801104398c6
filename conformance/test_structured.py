"""Structured output with each backend: every complete answer matches the constraint."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from pytest_vllm_regress import Engine

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["a", "bc"]}, "ok": {"type": "boolean"}},
    "required": ["kind", "ok"],
    "additionalProperties": False,
}
CONSTRAINTS: dict[str, Any] = {
    "json": SCHEMA,
    "regex": "[a-c]{3}-[0-9]{2}",
    "choice": ["yes", "no", "yes and no"],
    "grammar": 'start: "a" digit digit\ndigit: "0" | "1"\n',
}


def matches(kind: str, text: str) -> bool:
    if kind == "choice":
        return text in CONSTRAINTS["choice"]
    if kind != "json":
        return (
            re.fullmatch(CONSTRAINTS["regex"] if kind == "regex" else "a[01][01]", text) is not None
        )
    value = json.loads(text)
    return (
        set(value) == {"kind", "ok"}
        and value["kind"] in ("a", "bc")
        and isinstance(value["ok"], bool)
    )


@pytest.mark.vllm_engine(
    backend=["xgrammar", "guidance", "outlines", "lm-format-enforcer"], generation=["V0", "V1"]
)
@pytest.mark.parametrize("kind", list(CONSTRAINTS))
def test_with(vllm_engine: Engine, kind: str) -> None:
    answers = vllm_engine.generate(
        [f"text {number}" for number in range(6)],
        {"max_tokens": 200, "structured_outputs": {kind: CONSTRAINTS[kind]}},
    )
    outputs = [answer["outputs"][0] for answer in answers]
    complete = [output["text"] for output in outputs if output["finish_reason"] == "stop"]
    assert complete, (
        f"none of six answers is complete: {sorted({str(output['finish_reason']) for output in outputs})}"
    )
    assert [text for text in complete if not matches(kind, text)] == []
