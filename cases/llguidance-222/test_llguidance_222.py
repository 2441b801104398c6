"""llguidance#222: a negative multiple must be accepted."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe


@pytest.mark.vllm_case("llguidance-222")
@pytest.mark.vllm_requires(llguidance=">=0.7.1")  # the first release with LLMatcher
@pytest.mark.parametrize(("kind", "divisor"), [("integer", 2), ("integer", 5), ("number", 3)])
def test_negative_multiple(
    vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str, kind: str, divisor: int
) -> None:
    options: dict[str, Any] = {"backend": "llguidance", "tokenizer": vllm_model_path}
    schema, negative = {"type": kind, "multipleOf": divisor}, str(-4 * divisor)
    divides = [
        vllm_probe("grammars:accepts", schema=schema, text=str(number), **options)
        for number in (4 * divisor, 4 * divisor + 1)
    ]
    signed = vllm_probe("grammars:accepts", schema={"type": kind}, text=negative, **options)
    vllm_at_work(
        "multiples are distinguished from other numbers, and negative numbers are accepted",
        divides == [True, False] and signed,
    )
    assert vllm_probe("grammars:accepts", schema=schema, text=negative, **options), (
        f"llguidance rejects {negative} for {schema}"
    )
