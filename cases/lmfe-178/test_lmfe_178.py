"""lm-format-enforcer#178: numeric limits must be enforced."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe

LIMITS = [({"minimum": 100}, "50"), ({"maximum": 10}, "15"), ({"multipleOf": 5}, "7")]


@pytest.mark.vllm_case("lmfe-178")
@pytest.mark.parametrize(("limit", "text"), LIMITS, ids=["minimum", "maximum", "multipleOf"])
def test_limit(vllm_probe: Probe, vllm_at_work: AtWork, limit: dict[str, int], text: str) -> None:
    distinguishes = vllm_probe("accepts", schema={"type": "integer"}, text=text) and not vllm_probe(
        "accepts", schema={"type": "string"}, text=text
    )
    vllm_at_work("integers are distinguished from other values", distinguishes)
    schema = {"type": "integer", **limit}
    assert not vllm_probe("accepts", schema=schema, text=text), f"lm-format-enforcer accepts {text} for {schema}"
