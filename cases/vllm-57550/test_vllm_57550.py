"""vllm#57550: a pattern with a length limit is beyond xgrammar, whether or not the schema names its type."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

# Before 0.29 the check did not know the pair at all (vllm#45592).
pytestmark = pytest.mark.vllm_requires(vllm=">=0.29")

SCHEMA = {"pattern": "^[a-z]+$", "maxLength": 3}


@pytest.fixture(autouse=True)
def check_tells_schemas_apart(vllm_probe: Probe, vllm_at_work: AtWork) -> None:
    refused, taken = ({"type": "integer", "multipleOf": 3}, {"type": "integer"})
    told_apart = vllm_probe("is_beyond_xgrammar", schema=refused) and not vllm_probe("is_beyond_xgrammar", schema=taken)
    vllm_at_work("the check refuses what it knows, and nothing else", told_apart)


@pytest.mark.vllm_case("vllm-57550")
@pytest.mark.parametrize("schema", [SCHEMA, {"type": "object", "properties": {"a": SCHEMA}}], ids=["root", "property"])
def test_without_type(vllm_probe: Probe, schema: dict[str, Any]) -> None:
    assert vllm_probe("is_beyond_xgrammar", schema=schema), f"expected {schema} to be refused"


@pytest.mark.vllm_case("vllm-57550", variant="typed")
def test_with_type(vllm_probe: Probe) -> None:
    assert vllm_probe("is_beyond_xgrammar", schema={"type": "string", **SCHEMA})
