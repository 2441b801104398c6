"""Structured output with each backend: what ended by itself fits what was asked for."""

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
ASKED: dict[str, Any] = {
    "json": SCHEMA,
    "regex": "[a-c]{3}-[0-9]{2}",
    "choice": ["yes", "no", "yes and no"],
    "grammar": 'start: "a" digit digit\ndigit: "0" | "1"\n',
}


def fits(kind: str, text: str) -> bool:
    if kind == "choice":
        return text in ASKED["choice"]
    if kind != "json":
        return re.fullmatch(ASKED["regex"] if kind == "regex" else "a[01][01]", text) is not None
    value = json.loads(text)
    return set(value) == {"kind", "ok"} and value["kind"] in ("a", "bc") and isinstance(value["ok"], bool)


@pytest.mark.vllm_engine(backend=["xgrammar", "guidance", "outlines", "lm-format-enforcer"], generation=["V0", "V1"])
@pytest.mark.parametrize("kind", list(ASKED))
def test_with(vllm_engine: Engine, kind: str) -> None:
    answers = vllm_engine.generate(
        [f"text {number}" for number in range(6)], {"max_tokens": 200, "structured_outputs": {kind: ASKED[kind]}}
    )
    outputs = [answer["outputs"][0] for answer in answers]
    ended = [each["text"] for each in outputs if each["finish_reason"] == "stop"]
    assert ended, f"none of six came to its end: {sorted({str(each['finish_reason']) for each in outputs})}"
    assert [text for text in ended if not fits(kind, text)] == []
