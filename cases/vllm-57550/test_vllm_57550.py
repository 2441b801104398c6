"""vllm#57550: xgrammar does not support a pattern with a length limit, whether or not the schema names its type."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

# Before 0.29 the check ignored this combination altogether (vllm#45592).
pytestmark = pytest.mark.vllm_requires(vllm=">=0.29")

SCHEMA = {"pattern": "^[a-z]+$", "maxLength": 3}


@pytest.fixture(autouse=True)
def check_distinguishes_schemas(vllm_probe: Probe, vllm_at_work: AtWork) -> None:
    unsupported, supported = ({"type": "integer", "multipleOf": 3}, {"type": "integer"})
    distinguishes = vllm_probe("frontend:is_unsupported_by_xgrammar", schema=unsupported) and not vllm_probe(
        "frontend:is_unsupported_by_xgrammar", schema=supported
    )
    vllm_at_work("the check rejects what it knows, and nothing else", distinguishes)


@pytest.mark.vllm_case("vllm-57550")
@pytest.mark.parametrize("schema", [SCHEMA, {"type": "object", "properties": {"a": SCHEMA}}], ids=["root", "property"])
def test_without_type(vllm_probe: Probe, schema: dict[str, Any]) -> None:
    assert vllm_probe("frontend:is_unsupported_by_xgrammar", schema=schema), f"expected {schema} to be rejected"


@pytest.mark.vllm_case("vllm-57550", variant="typed")
def test_with_type(vllm_probe: Probe) -> None:
    assert vllm_probe("frontend:is_unsupported_by_xgrammar", schema={"type": "string", **SCHEMA})
