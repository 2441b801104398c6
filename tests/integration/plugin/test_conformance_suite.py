"""The conformance suite's own conftest: which checks run where, and what the report says about
them."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from pytest_vllm_regress.surveys import check_record
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


CHECKS = """
import pytest

@pytest.fixture
def breaks_before(): raise RuntimeError("no room")

@pytest.fixture
def breaks_after():
    yield
    raise RuntimeError("not stopped")

def test_works(): pass
def test_needs(breaks_before): pass
def test_fails(breaks_after): assert 1 == 8
def test_leaves(breaks_after): pass
def test_absent(): pytest.skip("not here")
"""


def test_each_check_is_kept_when_it_has_ended_and_not_run_again(
    pytester: pytest.Pytester, affected_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(check_record.RECORD, str(pytester.path / "checks.jsonl"))
    pytester.makeconftest((ROOT / "conformance" / "conftest.py").read_text())
    pytester.makepyfile(test_one=CHECKS)
    options = [
        f"--vllm-env={affected_target}",
        "-p",
        check_record.__name__,
        "-p",
        "no:cacheprovider",
    ]
    pytester.runpytest_inprocess(*options, "-k", "not works").assert_outcomes(
        failed=1, passed=1, errors=3, skipped=1, deselected=1
    )
    kept = check_record.open_checks(pytester.path / "checks.jsonl").entries.values()
    assert {check.check: (check.outcome, check.text.splitlines()[:1]) for check in kept} == {
        "needs": ("failed", ["setup of a fixture: RuntimeError: no room"]),
        "fails": ("failed", ["assert 1 == 8"]),
        "leaves": ("failed", ["teardown of a fixture: RuntimeError: not stopped"]),
        "absent": ("skipped", ["not here"]),
    }
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=1, deselected=4)
