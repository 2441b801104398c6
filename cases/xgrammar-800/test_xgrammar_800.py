"""xgrammar#800: a string with a limit must allow the same escapes as one without."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

# Earlier releases compile an extension for CUDA when they are imported, or cannot build a grammar for a string alone.
pytestmark = pytest.mark.vllm_requires(xgrammar=">=0.1.17")

case = pytest.mark.vllm_case
LIMITS = [
    pytest.param({"maxLength": 80}, id="maxLength", marks=case("xgrammar-800")),
    pytest.param({"minLength": 1}, id="minLength", marks=case("xgrammar-800")),
    pytest.param({"pattern": "^.*$"}, id="pattern", marks=case("xgrammar-800", variant="pattern")),
]


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("escape", ["\\n", '\\"', "\\u00fc"], ids=["newline", "quote", "unicode"])
def test_escape(
    vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str, limit: dict[str, Any], escape: str
) -> None:
    options: dict[str, Any] = {"backend": "xgrammar", "tokenizer": vllm_model_path}
    schema, text = {"type": "string", **limit}, f'"a{escape}b"'
    unlimited = vllm_probe("grammars:accepts", schema={"type": "string"}, text=text, **options)
    limited = vllm_probe("grammars:accepts", schema=schema, text='"ab"', **options)
    vllm_at_work("the escape is accepted without a limit, and plain text with it", unlimited and limited)
    assert vllm_probe("grammars:accepts", schema=schema, text=text, **options), (
        f"xgrammar rejects an escape in {text} for {schema}"
    )
