"""outlines-core#149: additionalProperties: false must work with patternProperties as it does with properties."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

NAMED: dict[str, Any] = {"type": "object", "properties": {"yes": {"type": "string"}}}
BY_PATTERN: dict[str, Any] = {"type": "object", "patternProperties": {"^(yes|no)$": {"type": "string"}}}
TEXT = '{"yes":"a"}'


@pytest.mark.vllm_case("outlines-core-149")
@pytest.mark.vllm_requires(outlines_core=">=0.2.2")  # earlier releases have another interface
def test_no_other_properties(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    def accepts(schema: dict[str, Any], *, others: bool) -> bool:
        closed = {**schema, "additionalProperties": others}
        accepted: bool = vllm_probe(
            "grammars:accepts", backend="outlines", tokenizer=vllm_model_path, schema=closed, text=TEXT
        )
        return accepted

    works = accepts(NAMED, others=False) and accepts(BY_PATTERN, others=True)
    vllm_at_work("named properties may be closed, and pattern properties open", works)
    assert accepts(BY_PATTERN, others=False), f"{TEXT} is rejected"
