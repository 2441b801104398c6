"""Test by release, in all formats."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_vllm_regress.answers.explain.known_failures import Suspects
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.output.formats import OutputFiles
from pytest_vllm_regress.output.suite import SuiteResults, rendered_suite, save_suite
from pytest_vllm_regress.output.suite_record import SuiteRecord
from pytest_vllm_regress.runner.suite import EnvironmentRun, SuiteOutcome, SuiteTest, TestOutcome
from pytest_vllm_regress.util.report import to_terminal

PASSED = SuiteTest(TestOutcome.PASSED, 1.5)
FAILED = SuiteTest(TestOutcome.FAILED, 2.0, "> f()\nE   ValueError: <b>\n\na.py:1: ValueError")


def results(**runs: tuple[str, dict[str, SuiteTest]]) -> SuiteResults:
    outcome = SuiteOutcome(tuple(EnvironmentRun(name, tests) for name, (_, tests) in runs.items()))
    versions = {name: version for name, (version, _) in runs.items()}
    return SuiteResults(outcome, ("pytest",), {("old", "a.py::x"): Suspects(("demo-1",))}, versions)


TWO = results(
    old=("0.8.5", {"a.py::x": FAILED, "a.py::y": PASSED}), new=("0.33.0", {"a.py::x": PASSED})
)


def test_documented_failures_stand_beside_the_test_that_fails_there() -> None:
    rows = TWO.report().sections[0].parts[1].rows  # type: ignore[union-attr]
    assert rows == [("a.py::x", "failed: demo-1", "passed"), ("a.py::y", "passed", "not run")]
    assert "failed: demo-1" in rendered_suite("markdown", TWO)
    assert "<td>failed: demo-1</td>" in rendered_suite("html", TWO)
    shown = to_terminal(TWO.report(everything=False))
    assert "a.py::x (old): ValueError: <b>" in shown


def test_junit_has_a_suite_for_each_release() -> None:
    old, new = ElementTree.fromstring(rendered_suite("junit", TWO))
    assert (old.get("name"), old.get("tests"), old.get("failures"), old.get("skipped")) == (
        *("old", "2", "1"),
        "0",
    )
    failure = old.find("testcase/failure")
    assert failure is not None and failure.get("message") == "failed: demo-1: ValueError: <b>"
    skipped = new.find("testcase[@name='y']/skipped")
    assert skipped is not None and skipped.get("message") == "not run"


def test_json_has_everything_and_a_badge(tmp_path: Path) -> None:
    said: list[str] = []
    save_suite(TWO, OutputFiles.of([tmp_path / "folder"]), said.append)
    document = json.loads((tmp_path / "folder" / "suite.json").read_text())
    assert document["runs"][0]["tests"]["a.py::x"]["documented"] == {
        "shown": ["demo-1"],
        "missing": [],
    }
    assert document["badge"]["message"] == TWO.badge


@pytest.mark.parametrize(
    ("versions", "badge"),
    [
        (["0.10.0", "0.9.0", "0.9.2"], "works with vLLM 0.9 to 0.10"),
        (["0.8.5", "0.33.0"], "works with vLLM 0.8.5, 0.33"),
        (["0.8.5"], "works with vLLM 0.8.5"),
        ([], "works with none of the tested releases of vLLM"),
    ],
)
def test_the_badge_joins_only_releases_between_which_nothing_was_left_out(
    versions: list[str], badge: str
) -> None:
    works = {f"e{number}": (version, {"t": PASSED}) for number, version in enumerate(versions)}
    assert results(**works, broken=("0.9.1", {"t": FAILED})).badge == badge


def compared(tmp_path: Path, before: SuiteResults, now: SuiteResults) -> SuiteResults:
    """Return results that are compared with what --out wrote of earlier ones."""
    (tmp_path / "base.json").write_text(rendered_suite("json", before))
    return dataclasses.replace(now, base=SuiteRecord.read(tmp_path / "base.json"))


def test_a_new_release_is_compared_with_the_newest_older_one(tmp_path: Path) -> None:
    before = results(
        older=("0.8.5", {"t": PASSED, "u": PASSED}), old=("0.11.2", {"t": PASSED, "u": FAILED})
    )
    now = compared(tmp_path, before, results(new=("0.33.0", {"t": FAILED, "u": FAILED})))
    assert now.broken == [("t", "new", "passed in old")] and now.exit_code == 1
    assert "fails newly" in to_terminal(now.report(everything=False))
    assert json.loads(rendered_suite("json", now))["broken"] == [
        {"test": "t", "environment": "new", "before": "passed in old"}
    ]


def test_what_failed_before_does_not_count(tmp_path: Path) -> None:
    failed = results(old=("0.8.5", {"t": FAILED, "u": PASSED}))
    now = compared(tmp_path, failed, failed)
    assert (failed.exit_code, now.exit_code, now.broken) == (1, 0, [])
    assert "Nothing fails that did not fail before." in to_terminal(now.report())
    added = results(old=("0.8.5", {"t": FAILED, "u": PASSED, "v": FAILED}))
    assert compared(tmp_path, failed, added).broken == [("v", "old", "no such test in old")]
    crashed = SuiteOutcome((EnvironmentRun("old", {"t": FAILED}, ("pytest crashed",)),))
    assert compared(tmp_path, failed, dataclasses.replace(failed, outcome=crashed)).exit_code == 1


def test_what_is_not_recorded_counts(tmp_path: Path) -> None:
    newer = results(newer=("0.33.0", {"t": PASSED}))
    now = compared(tmp_path, newer, results(old=("0.8.5", {"t": FAILED})))
    assert now.broken == [("t", "old", "not recorded")]


@pytest.mark.parametrize("text", ["", "[]", '{"runs": [{"tests": 1}]}'])
def test_a_file_that_has_no_results_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "o.json").write_text(text)
    with pytest.raises(UsageError):
        SuiteRecord.read(tmp_path / "o.json")
    with pytest.raises(UsageError, match="no such file"):
        SuiteRecord.read(tmp_path / "missing.json")
