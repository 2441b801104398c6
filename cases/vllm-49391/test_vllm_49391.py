"""vllm#49391: the stop string that comes first in the text must end it."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe


@pytest.mark.vllm_case("vllm-49391")
def test_first_in_the_text(vllm_probe: Probe, vllm_at_work: AtWork) -> None:
    text = "one. two! three"
    one_by_one = vllm_probe("stopped", text=text, stop=["!", "."], step=1)
    vllm_at_work("character by character, the first one ends the text", one_by_one == ["one", "."])
    at_once = vllm_probe("stopped", text=text, stop=["!", "."], step=len(text))
    assert at_once == one_by_one, f"in one step the text ends as {at_once[0]!r} at {at_once[1]!r}"
