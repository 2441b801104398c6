"""vllm#16880: xgrammar supports minItems and maxItems."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe


@pytest.mark.vllm_case("vllm-16880")
# Before 0.8.5 the check is in another module, which the probe does not ask.
@pytest.mark.vllm_requires(vllm=">=0.8.5", cause="harness")
@pytest.mark.parametrize("name", ["minItems", "maxItems"])
def test_items(vllm_probe: Probe, vllm_at_work: AtWork, name: str) -> None:
    def rejected(schema: dict[str, object]) -> bool:
        return bool(vllm_probe("frontend:is_unsupported_by_xgrammar", schema=schema))

    array: dict[str, object] = {"type": "array", "items": {"type": "string"}}
    vllm_at_work("an array is supported", not rejected(array))
    vllm_at_work("the check rejects what it knows", rejected({"type": "integer", "multipleOf": 3}))
    assert not rejected({**array, name: 1}), f"a schema with {name} is rejected"
