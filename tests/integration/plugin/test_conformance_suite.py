"""The conformance suite's own conftest: which checks run where, and what the report says about
them."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.helpers import ROOT

SUITE = """
import pytest

@pytest.mark.generation_only("V1", "V0 counts nothing")
@pytest.mark.vllm_engine(generation=["V0", "V1"])
def test_counted(vllm_engine):
    raise AssertionError("it was asked for an engine")
"""


def test_what_one_generation_alone_can_show_is_not_applicable_in_the_other(
    pytester: pytest.Pytester, affected_target: Path
) -> None:
    pytester.makeconftest((ROOT / "conformance" / "conftest.py").read_text())
    pytester.makepyfile(test_speculation=SUITE)
    done = pytester.runpytest_inprocess(
        f"--vllm-env={affected_target}",
        "--junit-xml=report.xml",
        "-rs",
        "-k",
        "V0",
        "-p",
        "no:cacheprovider",
    )
    done.assert_outcomes(skipped=1, deselected=1)
    (case,) = ElementTree.parse(pytester.path / "report.xml").iter("testcase")
    properties = {prop.get("name"): prop.get("value") for prop in case.iter("property")}
    assert properties == {"section": "speculation", "check": "counted", "generation": "V0"}
    (skipped,) = case.iter("skipped")
    assert skipped.get("message") == "V0 counts nothing"
