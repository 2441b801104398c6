"""xgrammar#286: control characters inside JSON strings must be rejected."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe


@pytest.mark.vllm_case("xgrammar-286")
@pytest.mark.parametrize("character", ["\t", "\x1f"], ids=["tab", "unit-separator"])
def test_control_character(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str, character: str) -> None:
    # An object, because the first releases of xgrammar do not compile the schema of a string alone.
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    options: dict[str, Any] = {"backend": "xgrammar", "tokenizer": vllm_model_path, "schema": schema}
    distinguishes = vllm_probe("grammars:accepts", text='{"a": "ab"}', **options) and not vllm_probe(
        "grammars:accepts", text='{"a": 12}', **options
    )
    vllm_at_work("strings are distinguished from other values", distinguishes)
    accepted = vllm_probe("grammars:accepts", text=f'{{"a": "a{character}b"}}', **options)
    assert not accepted, f"xgrammar accepts {character!r} inside a string"
