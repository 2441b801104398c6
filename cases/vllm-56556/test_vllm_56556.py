"""vllm#56556: allOf passes the check for what xgrammar does not support."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe

SCHEMA = {"allOf": [{"type": "string"}, {"maxLength": 3}]}


@pytest.mark.vllm_case("vllm-56556")
def test_all_of(vllm_probe: Probe, vllm_at_work: AtWork) -> None:
    refused = vllm_probe("is_beyond_xgrammar", schema={"type": "integer", "multipleOf": 3})
    vllm_at_work("the check refuses what it knows", refused is True)
    assert vllm_probe("is_beyond_xgrammar", schema=SCHEMA) is True, f"ignored by xgrammar: {SCHEMA}"
