"""lm-format-enforcer#178: limits of numbers hold."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe

LIMITS = [({"minimum": 100}, "50"), ({"maximum": 10}, "15"), ({"multipleOf": 5}, "7")]


@pytest.mark.vllm_case("lmfe-178")
@pytest.mark.parametrize(("limit", "text"), LIMITS, ids=["minimum", "maximum", "multipleOf"])
def test_limit(vllm_probe: Probe, vllm_at_work: AtWork, limit: dict[str, int], text: str) -> None:
    told_apart = vllm_probe("is_taken", schema={"type": "integer"}, text=text) and not vllm_probe(
        "is_taken", schema={"type": "boolean"}, text=text
    )
    vllm_at_work("integers are told from other values", told_apart)
    schema = {"type": "integer", **limit}
    assert not vllm_probe("is_taken", schema=schema, text=text), f"lm-format-enforcer takes {text} for {schema}"
