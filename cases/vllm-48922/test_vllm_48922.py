"""vllm#48922: a conversation with a malformed call must not be rejected."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe


@pytest.mark.vllm_case("vllm-48922")
@pytest.mark.parametrize("arguments", ['{"a": 1', " "], ids=["cut-off", "blank"])
def test_malformed_call(vllm_probe: Probe, vllm_at_work: AtWork, arguments: str) -> None:
    (valid,) = vllm_probe("frontend:conversation", arguments='{"a": 1}')
    vllm_at_work("arguments are parsed for the template", valid["tool_calls"][0]["function"]["arguments"] == {"a": 1})
    (message,) = vllm_probe("frontend:conversation", arguments=arguments)
    assert message["tool_calls"][0]["function"]["arguments"] == {}
