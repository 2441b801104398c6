"""llguidance#222: a negative number is a multiple, too."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe


@pytest.mark.vllm_case("llguidance-222")
@pytest.mark.parametrize(("kind", "divisor"), [("integer", 2), ("integer", 5), ("number", 3)])
def test_negative_multiple(
    vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str, kind: str, divisor: int
) -> None:
    asked: dict[str, Any] = {"backend": "llguidance", "tokenizer": vllm_model_path}
    schema, negative = {"type": kind, "multipleOf": divisor}, str(-4 * divisor)
    divides = [vllm_probe("takes", schema=schema, text=str(each), **asked) for each in (4 * divisor, 4 * divisor + 1)]
    signed = vllm_probe("takes", schema={"type": kind}, text=negative, **asked)
    vllm_at_work("multiples are told from others, and numbers may have a sign", divides == [True, False] and signed)
    assert vllm_probe("takes", schema=schema, text=negative, **asked), f"llguidance refuses {negative} for {schema}"
