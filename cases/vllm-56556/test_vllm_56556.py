"""vllm#56556: the check for schemas that xgrammar does not support must reject allOf."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe

SCHEMA = {"allOf": [{"type": "string"}, {"maxLength": 3}]}


@pytest.mark.vllm_case("vllm-56556")
def test_all_of(vllm_probe: Probe, vllm_at_work: AtWork) -> None:
    rejected = vllm_probe("frontend:is_unsupported_by_xgrammar", schema={"type": "integer", "multipleOf": 3})
    vllm_at_work("the check rejects what it knows", rejected is True)
    assert vllm_probe("frontend:is_unsupported_by_xgrammar", schema=SCHEMA) is True, (
        f"expected the check to reject {SCHEMA}"
    )
