"""vllm#48416: a list of types passes the check for what xgrammar does not support."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe

REFUSED = [("integer", {"multipleOf": 3}), ("array", {"uniqueItems": True})]


@pytest.mark.vllm_case("vllm-48416")
@pytest.mark.parametrize(("kind", "limit"), REFUSED, ids=["integer", "array"])
def test_list_of_types(vllm_probe: Probe, vllm_at_work: AtWork, kind: str, limit: dict[str, object]) -> None:
    told_apart = vllm_probe("is_beyond_xgrammar", schema={"type": kind, **limit}) is True
    vllm_at_work("the check refuses the type alone", told_apart)
    schema = {"type": [kind, "null"], **limit}
    assert vllm_probe("is_beyond_xgrammar", schema=schema) is True, f"taken for xgrammar: {schema}"
