"""vllm#45389: a brace inside a string ends no argument."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe


@pytest.mark.vllm_case("vllm-45389")
@pytest.mark.vllm_requires(vllm=">=0.8.3")  # the first that streams the arguments of a required call
def test_brace(vllm_probe: Probe, vllm_at_work: AtWork) -> None:
    def arguments(city: str) -> str:
        text = '[{"name": "weather", "parameters": {"city": "CITY"}}]'.replace("CITY", city)
        return str(vllm_probe("streamed", text=text))

    vllm_at_work("arguments without braces are streamed whole", arguments("Paris") == '{"city": "Paris"}')
    streamed = arguments("a}}b")
    assert streamed == '{"city": "a}}b"}', f"the arguments are streamed as {streamed}"
