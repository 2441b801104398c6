"""The conformance record and its table: reports read, faults explained, rows and notes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_vllm_regress.cli import conformance as command
from pytest_vllm_regress.cli import main
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.surveys.conformance import record
from pytest_vllm_regress.surveys.conformance.record_file import read_record, write_record
from pytest_vllm_regress.surveys.conformance.suite import suite_directory
from pytest_vllm_regress.surveys.conformance.table import table
from pytest_vllm_regress.util import patterns
from pytest_vllm_regress.util.patterns import PatternTooSlow
from tests.helpers import ROOT

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
FAULTS = """
[[fault]]
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
def faults(tmp_path: Path) -> tuple[record.Fault, ...]:
    (tmp_path / "known.toml").write_text(FAULTS)
    return record.read_faults(tmp_path / "known.toml")


def test_a_report_is_read_into_cells(ran: record.SuiteRun) -> None:
    assert [(cell.section, cell.check, cell.generation, cell.outcome) for cell in ran.cells] == [
        ("offline", "n 8", "V1", "ok"),
        ("offline", "start", "V0", "n/a"),
        ("async", "abort", "V1", "FAIL"),
    ]
    assert ran.versions == {"vllm": "0.8.4", "torch": "2.6.0"} and ran.device == "sim"
    assert "assert 1 == 8" in ran.cells[2].reason


def test_a_fault_explains_only_what_matches_in_every_field(
    ran: record.SuiteRun, faults: tuple[record.Fault, ...]
) -> None:
    assert record.unexplained([ran], faults) == []
    assert record.unexplained([ran], ()) == [(ran, ran.cells[2])]
    later = dataclasses.replace(ran, versions={"vllm": "0.8.5"})
    other = dataclasses.replace(ran, cells=(dataclasses.replace(ran.cells[2], reason="it hung"),))
    assert len(record.unexplained([later, other], faults)) == 2


def test_every_failed_cell_of_the_project_is_explained_and_the_page_matches_the_record() -> None:
    runs = read_record(ROOT / command.RECORD).values()
    faults = record.read_faults(suite_directory() / "known.toml")
    assert runs and record.unexplained(runs, faults) == []
    assert [
        cell
        for ran in runs
        for cell in ran.cells
        if cell.outcome == "n/a" and cell.reason.strip() in ("", "Skipped:")
    ] == []
    assert (ROOT / command.TABLE).read_text() == "".join(
        f"{line}\n" for line in table(runs, faults)
    )


def test_table_has_a_row_for_each_generation_that_exists_and_a_note_for_each_reason(
    ran: record.SuiteRun, faults: tuple[record.Fault, ...]
) -> None:
    page = "\n".join(table([ran], faults))
    assert "| 0.8.4 V1 sim | ok | - |" in page and "V0 sim" not in page
    assert "| 0.8.4 V1 sim | FAIL [1] |" in page and "1. one of eight (upstream#1)" in page
    assert page.isascii()


def test_repeated_cells_replace_earlier_ones(ran: record.SuiteRun) -> None:
    again = dataclasses.replace(
        ran, cells=(dataclasses.replace(ran.cells[2], outcome="ok", reason=""),)
    )
    assert [cell.outcome for cell in record.merged(ran, again).cells] == ["ok", "n/a", "ok"]
    other = dataclasses.replace(again, versions={"vllm": "0.8.5"})
    assert record.merged(ran, other) == other


def test_selected_checks_are_merged_into_a_record_and_do_not_make_a_whole_run(
    ran: record.SuiteRun,
) -> None:
    part = dataclasses.replace(ran, cells=ran.cells[:1], whole=False)
    runs: dict[tuple[str, str], record.SuiteRun] = {}
    record.add(runs, part)
    assert not runs[ran.key].whole
    record.add(runs, ran)
    record.add(
        runs, dataclasses.replace(part, cells=(dataclasses.replace(ran.cells[0], check="new"),))
    )
    assert runs[ran.key].whole
    assert [cell.check for cell in runs[ran.key].cells] == ["n 8", "start", "abort", "new"]


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Replace the suite and record its pytest arguments by environment.

    It has two checks, of which ``-k`` selects the second.
    """
    requests: dict[str, list[str]] = {}

    def run(name: str, suite: Path, pytest_args: Sequence[str] = ()) -> record.SuiteRun:
        requests[name] = list(pytest_args)
        cells = [record.CheckResult("serve", check, "V1", "ok") for check in ("one", "two")]
        return record.SuiteRun(
            name, "sim", {"vllm": "1.0"}, "m", "2026-01-01", tuple(cells[bool(pytest_args) :])
        )

    monkeypatch.setattr(command, "run_suite", run)
    monkeypatch.setattr(command, "build_with_cache", lambda say: lambda name: None)
    return requests


def test_selected_checks_run_even_if_the_record_has_the_environment(
    suite: dict[str, list[str]], tmp_path: Path
) -> None:
    file, page = tmp_path / "record.json", tmp_path / "page.md"
    places = ["--record", str(file), "--write", str(page)]
    assert main(["conformance", *places, "-k", "two", "a"]) == 0
    assert suite == {"a": ["-k", "two"]} and not read_record(file)["a", "sim"].whole
    assert (
        main(["conformance", *places, "a", "b"]) == 0
    )  # a part is not the whole, so "a" is run as "b" is
    assert suite == {"a": [], "b": []}
    suite.clear()
    assert main(["conformance", *places, "a", "b"]) == 0 and suite == {}
    assert main(["conformance", *places, "-k", "two", "b"]) == 0 and suite == {"b": ["-k", "two"]}
    assert [cell.check for cell in read_record(file)["b", "sim"].cells] == ["one", "two"]


def test_a_record_of_selected_checks_is_merged_into_another(
    ran: record.SuiteRun, tmp_path: Path
) -> None:
    source, record_file, page = (
        tmp_path / name for name in ("mine.json", "theirs.json", "page.md")
    )
    new = dataclasses.replace(
        ran, whole=False, cells=(dataclasses.replace(ran.cells[0], check="new"),)
    )
    other = dataclasses.replace(new, environment="other")
    write_record(record_file, {ran.key: dataclasses.replace(ran, cells=ran.cells[:2])})
    write_record(source, {suite_run.key: suite_run for suite_run in (new, other)})
    assert (
        main(
            [
                "conformance",
                "--merge",
                str(source),
                "--record",
                str(record_file),
                "--write",
                str(page),
            ]
        )
        == 0
    )
    runs = read_record(record_file)
    assert [cell.check for cell in runs[ran.key].cells] == ["n 8", "start", "new"] and runs[
        ran.key
    ].whole
    assert runs[other.key] == other
    assert (
        main(["conformance", "--merge", str(tmp_path / "none.json"), "--record", str(record_file)])
        == 2
    )


def test_record_is_read_back_as_it_was(ran: record.SuiteRun, tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    assert read_record(file) == {}
    write_record(file, {ran.key: ran})
    assert read_record(file) == {("vllm-0.8.4", "sim"): ran}


@pytest.mark.parametrize(
    "content",
    [
        '[{"environment": "x"}]',
        '{"checks": [], "reasons": [], "runs": [{"environment": "x", "outcomes": ""}]}',
        '{"checks": [["a", "b", "V1"]], "reasons": [], "runs": [{"outcomes": "FAIL:0"}]}',
        '{"checks": [["a", "b", "V1"]], "reasons": [], "runs": [{"outcomes": "maybe"}]}',
        '{"checks": [["a", "b", "V1"]], "reasons": [], "runs": [{"outcomes": "ok ok"}]}',
    ],
)
def test_an_invalid_record_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "record.json").write_text(content)
    with pytest.raises(UsageError, match="not a record"):
        read_record(tmp_path / "record.json")


def test_gpu_and_simulated_device_have_separate_rows(ran: record.SuiteRun, tmp_path: Path) -> None:
    facts = {"gpu": "stand-in (0)", "attention_backend": "FLASH_ATTN"}
    on_gpu = dataclasses.replace(ran, device="gpu", gpu=facts, cells=ran.cells[:1])
    file = tmp_path / "record.json"
    write_record(file, {run.key: run for run in (ran, on_gpu)})
    runs = read_record(file)
    assert runs == {run.key: run for run in (ran, on_gpu)}
    page = "\n".join(table(runs.values(), ()))
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


def test_without_names_the_table_is_written_from_the_record(
    ran: record.SuiteRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record, page = tmp_path / "record.json", tmp_path / "page.md"
    shorter = dataclasses.replace(ran, cells=ran.cells[:2])
    write_record(record, {ran.key: shorter})
    assert main(["conformance", "--record", str(record), "--write", str(page)]) == 0
    assert "# Conformance" in page.read_text()
    newer = dataclasses.replace(ran, versions={"vllm": "99.0"})
    write_record(record, {ran.key: newer})
    assert main(["conformance", "--record", str(record), "--write", str(page)]) == 1
    assert "async: abort" in capsys.readouterr().err


def test_the_faults_of_the_suite_can_be_read() -> None:
    assert record.read_faults(suite_directory() / "known.toml")


def test_the_pattern_of_a_fault_has_a_time_limit(
    ran: record.SuiteRun, faults: tuple[record.Fault, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = dataclasses.replace(ran.cells[0], reason="x" * 30_000)
    endless = dataclasses.replace(faults[0], symptom="(?:x+x+)+y", checks=("*",), generation="*")
    monkeypatch.setattr(patterns.search, "__defaults__", (0.2,))
    with pytest.raises(PatternTooSlow, match="exceeded"):
        endless.explains(ran, cell)


@pytest.mark.parametrize(
    "written",
    ['symptom = "("', "symptom = 1", "checks = 1", 'vllm = "x"', "unknown = 1"],
    ids=lambda line: line[:9],
)
def test_an_invalid_list_of_faults_is_refused(tmp_path: Path, written: str) -> None:
    name = written.partition(" ")[0]
    fields = {"vllm": '">=0.8"', "checks": '["*"]', "symptom": '"x"', "why": '"y"'}
    lines = [f"{key} = {value}" for key, value in fields.items() if key != name]
    (tmp_path / "known.toml").write_text("\n".join(["[[fault]]", *lines, written]))
    with pytest.raises(UsageError, match=r"known\.toml"):
        record.read_faults(tmp_path / "known.toml")
