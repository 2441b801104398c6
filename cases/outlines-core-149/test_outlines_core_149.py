"""outlines-core#149: additionalProperties: false is allowed beside patternProperties as beside properties."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

NAMED: dict[str, Any] = {"type": "object", "properties": {"yes": {"type": "string"}}}
BY_PATTERN: dict[str, Any] = {"type": "object", "patternProperties": {"^(yes|no)$": {"type": "string"}}}
TEXT = '{"yes":"a"}'


@pytest.mark.vllm_case("outlines-core-149")
def test_no_other_properties(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    def takes(schema: dict[str, Any], *, others: bool) -> bool:
        closed = {**schema, "additionalProperties": others}
        taken: bool = vllm_probe("takes", backend="outlines", tokenizer=vllm_model_path, schema=closed, text=TEXT)
        return taken

    sound = takes(NAMED, others=False) and takes(BY_PATTERN, others=True)
    vllm_at_work("properties by name may be closed, and by pattern open", sound)
    assert takes(BY_PATTERN, others=False), f"{TEXT} is refused"
