"""lm-format-enforcer#124: the state that vLLM builds for a schema must survive a process boundary unchanged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_vllm_regress import AtWork, Probe, json_schemas

pytestmark = pytest.mark.vllm_case("lmfe-124")

FEW = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    # The fixtures hold one probe process for the whole test, which the examples are meant to share.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

UPSTREAM_SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("originalValue", "modifiedValue", "key", "errorType")},
    "required": ["originalValue", "modifiedValue", "key", "errorType"],
}
"""The shape of the reported schema: an object of required, unbounded strings."""


@pytest.fixture(autouse=True)
def state_is_built(vllm_probe: Probe, vllm_model_path: str, vllm_at_work: AtWork) -> None:
    first = vllm_probe("first_step", timeout=180, model=vllm_model_path, schema=UPSTREAM_SCHEMA)
    vllm_at_work("lm-format-enforcer restricts the first token", 0 < first["allowed"] < first["vocabulary"])


def check(reply: dict[str, Any]) -> None:
    """Assert that states were compared in another process and did not differ."""
    assert reply["hand_overs"], f"nothing was handed over: {reply}"
    assert reply["receiver_pid"] != reply["sender_pid"]
    for hand_over in reply["hand_overs"]:
        assert hand_over["bytes"] > 0
        assert hand_over["compared"] == reply["steps"] - hand_over["at"] > 0
        assert hand_over["difference"] is None, f"{reply['way']}: {hand_over['difference']} after {reply['text']!r}"


def test_upstream_schema(vllm_probe: Probe, vllm_model_path: str) -> None:
    reply = vllm_probe("carry_over", timeout=180, model=vllm_model_path, schema=UPSTREAM_SCHEMA)
    check(reply)
    assert reply["distinct_masks"] > 3, f"the walk did not exercise the grammar: {reply['text']!r}"


@FEW
@given(schema=json_schemas("basic"), seed=st.integers(0, 999))
def test_drawn_schemas(vllm_probe: Probe, vllm_model_path: str, schema: dict[str, Any], seed: int) -> None:
    check(vllm_probe("carry_over", timeout=180, model=vllm_model_path, schema=schema, seed=seed))
