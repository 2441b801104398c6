"""The conformance record and its table: reports read, known failures explained, rows and notes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_vllm_regress.cli import main
from pytest_vllm_regress.cli import survey as command
from pytest_vllm_regress.cli.context import Invocation
from pytest_vllm_regress.errors import BuildError, UsageError
from pytest_vllm_regress.surveys import conformance as record
from pytest_vllm_regress.surveys.conformance import open_runs, suite_directory
from pytest_vllm_regress.util import patterns
from pytest_vllm_regress.util.patterns import PatternTooSlow
from tests.helpers import ROOT
from tools import record as recording
from tools.conformance_page import page as table

REPORT = """<testsuites><testsuite name="pytest">
<properties><property name="device" value="sim"/><property name="python" value="3.11.7"/>
<property name="versions" value='{"vllm": "0.8.4", "torch": "2.6.0", "left-pad": "1"}'/></properties>
<testcase classname="a" name="a" time="1.26"><properties><property name="section" value="offline"/><property name="check" value="n 8"/>
<property name="generation" value="V1"/></properties></testcase>
<testcase classname="a" name="b" time="0"><properties><property name="section" value="offline"/><property name="check" value="start"/>
<property name="generation" value="V0"/></properties><skipped message="Skipped: vLLM 0.8.4 has no V0 engine">x</skipped></testcase>
<testcase classname="a" name="c" time="0"><properties><property name="section" value="async"/><property name="check" value="abort"/>
<property name="generation" value="V1"/></properties><failure message="AssertionError: assert 1 == 8">def test():
E   assert 1 == 8
</failure></testcase></testsuite></testsuites>"""
KNOWN = """
[[known]]
vllm = "<0.8.5"
generation = "V1"
checks = ["async: ab*"]
symptom = "1 == 8"
why = "one of eight (upstream#1)"
"""


@pytest.fixture
def ran(tmp_path: Path) -> record.SuiteRun:
    (tmp_path / "report.xml").write_text(REPORT)
    return record.read_report("vllm-0.8.4", tmp_path / "report.xml")


@pytest.fixture
def known(tmp_path: Path) -> tuple[record.KnownFailure, ...]:
    (tmp_path / "known.toml").write_text(KNOWN)
    return record.read_known(tmp_path / "known.toml")


def test_a_report_is_read_into_cells(ran: record.SuiteRun) -> None:
    assert [(cell.section, cell.check, cell.generation, cell.outcome) for cell in ran.cells] == [
        ("offline", "n 8", "V1", "ok"),
        ("offline", "start", "V0", "n/a"),
        ("async", "abort", "V1", "FAIL"),
    ]
    assert ran.versions == {"vllm": "0.8.4", "torch": "2.6.0"} and ran.device == "sim"
    assert "assert 1 == 8" in ran.cells[2].reason


def test_workers_write_what_they_ran_in_to_their_tests(
    tmp_path: Path, ran: record.SuiteRun
) -> None:
    start, rest = REPORT.split("<properties>", 1)
    facts, rest = rest.split("</properties>", 1)
    of_tests = rest.replace("<properties>", f"<properties>{facts}")
    (tmp_path / "report.xml").write_text(start + of_tests)
    assert record.read_report("vllm-0.8.4", tmp_path / "report.xml") == ran


def test_an_error_after_a_failure_is_no_check_of_its_own(tmp_path: Path) -> None:
    again = (
        '<testcase classname="a" name="c" time="0"><error message="failed on teardown"/></testcase>'
    )
    (tmp_path / "report.xml").write_text(REPORT.replace("</testsuite>", f"{again}</testsuite>", 1))
    assert len(record.read_report("vllm-0.8.4", tmp_path / "report.xml").cells) == 3


def test_a_fault_explains_only_what_matches_in_every_field(
    ran: record.SuiteRun, known: tuple[record.KnownFailure, ...]
) -> None:
    assert record.unexplained([ran], known) == []
    assert record.unexplained([ran], ()) == [(ran, ran.cells[2])]
    later = dataclasses.replace(ran, versions={"vllm": "0.8.5"})
    other = ran.with_cells([replace(ran.cells[2], reason="it hung")])
    assert len(record.unexplained([later, other], known)) == 2


def test_every_failed_cell_of_the_project_is_explained() -> None:
    runs = open_runs(ROOT / "docs" / "records" / "conformance.jsonl").entries.values()
    known = record.read_known(suite_directory() / "known.toml")
    assert runs and record.unexplained(runs, known) == []
    assert [
        cell
        for ran in runs
        for cell in ran.cells
        if cell.outcome == "n/a" and cell.reason.strip() in ("", "Skipped:")
    ] == []


def test_table_has_a_row_for_each_generation_that_exists_and_a_note_for_each_reason(
    ran: record.SuiteRun, known: tuple[record.KnownFailure, ...]
) -> None:
    page = table([ran], known)
    assert "| 0.8.4 V1 sim | ok | - |" in page and "V0 sim" not in page
    assert "| 0.8.4 V1 sim | FAIL [1] |" in page and "1. one of eight (upstream#1)" in page
    assert page.isascii()


def test_selected_checks_replace_their_cells_in_the_record_and_make_no_whole_run(
    ran: record.SuiteRun, tmp_path: Path
) -> None:
    runs = open_runs(tmp_path / "runs.jsonl")
    part = dataclasses.replace(ran, whole=False).with_cells(ran.cells[:1])
    recording.add_run(runs, part)
    assert not runs[ran.name].whole
    recording.add_run(runs, ran)
    recording.add_run(runs, part.with_cells([replace(ran.cells[2], outcome="ok", reason="")]))
    recording.add_run(runs, part.with_cells([replace(ran.cells[0], check="new")]))
    assert runs[ran.name].whole
    assert [(cell.check, cell.outcome) for cell in runs[ran.name].cells] == [
        ("n 8", "ok"),
        ("start", "n/a"),
        ("new", "ok"),
        ("abort", "ok"),
    ]
    other = dataclasses.replace(part, versions={"vllm": "0.8.5"})
    recording.add_run(runs, other)
    assert runs[ran.name] == other


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, list[str]]:
    """Replace the suite and record its pytest arguments by environment.

    It has two checks, of which ``-- -k`` selects the second. ``broken`` cannot be built.
    """
    requests: dict[str, list[str]] = {}

    def run(
        name: str, suite: Path, pytest_args: Sequence[str] = (), **_: object
    ) -> record.SuiteRun:
        requests[name] = list(pytest_args)
        cells = [record.CheckResult("serve", check, "V1", "ok") for check in ("one", "two")]
        run = record.SuiteRun(name, "sim", {"vllm": "1.0"}, "m", "2026-01-01")
        return run.with_cells(cells[bool(pytest_args) :])

    def build(name: str) -> None:
        if name == "broken":
            raise BuildError("no such release")

    for module in (command, recording):
        monkeypatch.setattr(module, "build_with_cache", lambda say: build)
    for module in (record, recording):
        monkeypatch.setattr(module, "run_suite", run)
    monkeypatch.setattr(command, "say_bases", lambda names: None)
    monkeypatch.setattr(Invocation, "confirm_downloads", lambda *_: None)
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(recording, "RECORDS", tmp_path / "records")
    return requests


def test_a_survey_prints_the_outcomes_of_each_environment(
    suite: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["survey", "conformance", "--env", "a", "--env", "b", "--", "-k", "two"]) == 0
    assert suite == {"a": ["-k", "two"], "b": ["-k", "two"]}
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["environment", "vLLM", "ok", "n/a", "FAIL"],
        ["a", "sim", "1.0", "1", "0", "0"],
        ["b", "sim", "1.0", "1", "0", "0"],
    ]
    suite.clear()
    assert main(["survey", "conformance", "--env", "a", "--format", "json"]) == 0
    assert suite == {"a": []}  # nothing is left of a complete survey
    (printed,) = json.loads(capsys.readouterr().out)
    assert printed["cells"] == [
        {"section": "serve", "check": check, "generation": "V1", "outcome": "ok"}
        for check in ("one", "two")
    ]


def test_an_incomplete_survey_is_resumed_unless_it_starts_over(
    suite: dict[str, list[str]],
) -> None:
    survey = ["survey", "conformance", "--env", "a", "--env", "broken"]
    assert main(survey) == 3
    assert suite == {"a": []}
    suite.clear()
    assert main(survey) == 3 and suite == {}
    assert main([*survey, "--fresh"]) == 3 and suite == {"a": []}


def test_the_same_survey_is_refused_while_it_runs(
    suite: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    with command.resumed(open_runs, ["a"], fresh=False):
        for more in ([], ["--fresh"]):
            assert main(["survey", "conformance", "--env", "a", *more]) == 2
            assert "in use by process" in capsys.readouterr().err
    assert suite == {}
    assert main(["survey", "conformance", "--env", "a"]) == 0


def test_the_record_has_each_environment_once(suite: dict[str, list[str]], tmp_path: Path) -> None:
    recording.conformance(["a"], arguments=["-k", "two"])
    recording.conformance(["a", "b"])  # a part is not the whole, so "a" is run as "b" is
    assert suite == {"a": [], "b": []}
    suite.clear()
    recording.conformance(["a", "b"])
    assert suite == {}


def test_a_record_of_another_machine_is_merged(
    suite: dict[str, list[str]], ran: record.SuiteRun, tmp_path: Path
) -> None:
    recording.conformance(["a"])
    new = ran.with_cells(ran.cells[:1])
    open_runs(tmp_path / "theirs.jsonl").rewrite({new.name: new})
    recording.conformance(merge=[tmp_path / "theirs.jsonl"])
    runs = open_runs(tmp_path / "records" / "conformance.jsonl")
    assert [*runs] == ["a sim", "vllm-0.8.4 sim"]


@pytest.mark.parametrize(
    "content",
    [
        '[{"environment": "x"}]',
        '{"store": "runs of the conformance suite", "key": null}\n{"a sim": {"environment": "a"}}',
        '{"store": "runs of the conformance suite", "key": null}\n{"a sim": {"environment": "a", "device": "sim", '
        '"versions": {}, "machine": "", "at": "", "outcomes": [["maybe"]], "results": {"a": {"b": [null, 0]}}}}',
        '{"store": "runs of the conformance suite", "key": null}\n{"a sim": {"environment": "a", "device": "sim", '
        '"versions": {}, "machine": "", "at": "", "outcomes": [["ok"]], "results": {"a": {"b": [null, 1]}}}}',
    ],
)
def test_an_invalid_record_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "record.jsonl").write_text(f"{content}\n")
    with pytest.raises(UsageError, match=r"record\.jsonl"):
        open_runs(tmp_path / "record.jsonl")


def test_gpu_and_simulated_device_have_separate_rows(ran: record.SuiteRun, tmp_path: Path) -> None:
    facts = {"gpu": "stand-in (0)", "attention_backend": "FLASH_ATTN"}
    on_gpu = dataclasses.replace(ran, device="gpu", gpu=facts).with_cells(ran.cells[:1])
    runs = {run.name: run for run in (ran, on_gpu)}
    open_runs(tmp_path / "record.jsonl").rewrite(runs)
    assert dict(open_runs(tmp_path / "record.jsonl").entries) == runs
    page = table(runs.values(), ())
    assert "| 0.8.4 V1 sim |" in page
    assert "| 0.8.4 V1 gpu |" in page
    assert "vllm-0.8.4 on gpu: gpu stand-in (0), attention backend FLASH_ATTN." in page


def test_a_report_contains_the_gpus(tmp_path: Path) -> None:
    case = (
        '<testcase name="t" time="1"><properties><property name="section" value="s"/><property name="check" value="{0}"/>'
        '<property name="generation" value="V1"/><property name="vllm_gpu_attention_backend" value="{0}"/></properties></testcase>'
    )
    about = "".join(
        f"<property name='{name}' value='{value}'/>"
        for name, value in {
            "device": "gpu",
            "python": "3.11",
            "versions": "{&quot;vllm&quot;: &quot;1.0&quot;}",
        }.items()
    )
    report = tmp_path / "report.xml"
    cases = case.format("FLASHINFER") + case.format("TRITON")
    report.write_text(
        f"<testsuites><testsuite><properties>{about}</properties>{cases}</testsuite></testsuites>"
    )
    assert record.read_report("x", report).gpu == {"attention_backend": "FLASHINFER | TRITON"}


def test_the_known_failures_of_the_suite_can_be_read() -> None:
    assert record.read_known(suite_directory() / "known.toml")


def test_the_pattern_of_a_fault_has_a_time_limit(
    ran: record.SuiteRun, known: tuple[record.KnownFailure, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = replace(ran.cells[0], reason="x" * 30_000)
    endless = replace(known[0], symptom="(?:x+x+)+y", checks=("*",), generation="*")
    monkeypatch.setattr(patterns.search, "__defaults__", (0.2,))
    with pytest.raises(PatternTooSlow, match="exceeded"):
        endless.explains(ran, cell)


@pytest.mark.parametrize(
    "written",
    ['symptom = "("', "symptom = 1", "checks = 1", 'vllm = "x"', "unknown = 1"],
    ids=lambda line: line[:9],
)
def test_an_invalid_list_of_known_failures_is_refused(tmp_path: Path, written: str) -> None:
    name = written.partition(" ")[0]
    fields = {"vllm": '">=0.8"', "checks": '["*"]', "symptom": '"x"', "why": '"y"'}
    lines = [f"{key} = {value}" for key, value in fields.items() if key != name]
    (tmp_path / "known.toml").write_text("\n".join(["[[known]]", *lines, written]))
    with pytest.raises(UsageError, match=r"known\.toml"):
        record.read_known(tmp_path / "known.toml")
