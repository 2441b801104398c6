"""vllm#48416: the check for schemas that xgrammar does not support must reject a list of types."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe

UNSUPPORTED = [("integer", {"multipleOf": 3}), ("array", {"uniqueItems": True})]


@pytest.mark.vllm_case("vllm-48416")
@pytest.mark.parametrize(("kind", "limit"), UNSUPPORTED, ids=["integer", "array"])
def test_list_of_types(vllm_probe: Probe, vllm_at_work: AtWork, kind: str, limit: dict[str, object]) -> None:
    rejected = vllm_probe("frontend:is_unsupported_by_xgrammar", schema={"type": kind, **limit}) is True
    vllm_at_work("the check rejects the single type", rejected)
    schema = {"type": [kind, "null"], **limit}
    assert vllm_probe("frontend:is_unsupported_by_xgrammar", schema=schema) is True, (
        f"expected the check to reject {schema}"
    )
