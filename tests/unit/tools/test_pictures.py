"""Pictures of the records: what they show is what the records say."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from pytest_vllm_regress.surveys.states.growth import MemoryRow, MemoryRun, Slope
from pytest_vllm_regress.surveys.states.measure import ReleaseStates
from tools import pictures
from tools.verdicts import agreements

SVG = "{http://www.w3.org/2000/svg}"


def test_growth_shows_the_last_run_of_each_process() -> None:
    runs = (MemoryRun({"core": Slope(900, 800, 1000)}), MemoryRun({"core": Slope(70, 65, 80)}))
    release = ReleaseStates("0.9.2", growth={"completion": MemoryRow(runs)})
    picture = ElementTree.fromstring(pictures.growth([release]))
    titles = [title.text for title in picture.iter(f"{SVG}title")]
    assert titles[1:] == ["completion, vLLM 0.9.2: core 70 bytes"]
    assert [mark.get("class") for mark in picture.iter(f"{SVG}circle")] == [
        "first",
        "first hollow",  # of the legend
        "first",
    ]


def test_agreement_has_a_bar_for_each_pair_of_devices() -> None:
    picture = ElementTree.fromstring(pictures.agreement())
    text = " ".join("".join(element.itertext()) for element in picture.iter(f"{SVG}text"))
    for devices, found in agreements().items():
        agree = found.count - len(found.differ)
        assert f"{' and '.join(devices)}: {agree:,} of {found.count:,} agree" in text
