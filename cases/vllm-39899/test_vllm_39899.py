"""vllm#39899: the result of a tool reaches the chat template as a text."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe


@pytest.mark.vllm_case("vllm-39899")
def test_list_of_texts(vllm_probe: Probe, vllm_at_work: AtWork) -> None:
    parts = [{"type": "text", "text": "12:00"}]
    result = vllm_probe("parsed", content=parts)
    vllm_at_work("the result reaches the template", result["role"] == "tool" and "12:00" in str(result["content"]))
    assert result["content"] == "12:00", f"the template gets the tool's result as {result['content']}"
