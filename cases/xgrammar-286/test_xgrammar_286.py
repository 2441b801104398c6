"""xgrammar#286: JSON has no control characters inside strings."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe


@pytest.mark.vllm_case("xgrammar-286")
@pytest.mark.parametrize("character", ["\t", "\x1f"], ids=["tab", "unit-separator"])
def test_control_character(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str, character: str) -> None:
    asked: dict[str, Any] = {"backend": "xgrammar", "tokenizer": vllm_model_path, "schema": {"type": "string"}}
    told_apart = vllm_probe("takes", text='"ab"', **asked) and not vllm_probe("takes", text="12", **asked)
    vllm_at_work("strings are told from other values", told_apart)
    taken = vllm_probe("takes", text=f'"a{character}b"', **asked)
    assert not taken, f"xgrammar takes {character!r} inside a string"
