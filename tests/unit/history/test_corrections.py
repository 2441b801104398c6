"""What follows from verdicts on new releases: changes, edits of case files, and which ends of
ranges are observed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.version import Version

from pytest_vllm_regress.answers.audit.boundaries import boundaries
from pytest_vllm_regress.answers.audit.verdict_table import read_table
from pytest_vllm_regress.cases.loading import load_case
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.errors import CaseFileError, UsageError
from pytest_vllm_regress.history.corrections import WatchedRelease
from pytest_vllm_regress.history.watch import WatchReport, look, plan, write_look
from pytest_vllm_regress.runner.batch import Batch, RunOutcome
from pytest_vllm_regress.util.report import to_terminal
from tests.helpers.cases import CaseFile

LISTED = {
    "vllm": tuple(map(Version, ("0.8.4", "0.8.5", "0.32.0", "0.33.0", "0.34.0"))),
    "xgrammar": tuple(map(Version, ("0.2.7", "0.2.8"))),
}
NEW = WatchedRelease("vllm", Version("0.34.0"))
XGRAMMAR = "0.2.8"
Outcomes = dict[tuple[str, str], Verdict | Sequence[TestResult]]
"""Verdicts, or whole results, by case and environment."""


def result(
    case_id: str, environment: str, verdict: Verdict, test: str = "t", variant: str | None = None
) -> TestResult:
    versions = {"vllm": environment.removeprefix("vllm-"), "xgrammar": XGRAMMAR}
    return TestResult(
        case_id,
        test,
        verdict,
        "why",
        "sim",
        environment,
        versions,
        1_780_000_000.0,
        variant=variant,
    )


class Runs:
    """Runs batches with the outcomes of a test, and keeps which ran; what has no outcome is FIXED."""

    def __init__(
        self, outcomes: Outcomes, unbuilt: tuple[str, ...] = (), interrupted: bool = False
    ) -> None:
        self.outcomes, self.unbuilt, self.interrupted = outcomes, unbuilt, interrupted
        self.ran: list[tuple[str, list[str]]] = []

    def __call__(self, batches: Sequence[Batch]) -> RunOutcome:
        results: list[TestResult] = []
        for batch in batches:
            self.ran.append((batch.environment, [case.id for case in batch.cases]))
            for case in batch.cases:
                outcome = self.outcomes.get((case.id, batch.environment), Verdict.FIXED)
                one = (
                    [result(case.id, batch.environment, outcome)]
                    if isinstance(outcome, Verdict)
                    else outcome
                )
                results += one
        return RunOutcome(RunResult(tuple(results)), self.unbuilt, self.interrupted)


def watched(cases: Sequence[Case], runs: Runs, *releases: WatchedRelease) -> WatchReport:
    report = look(plan(releases or [NEW], cases, LISTED["vllm"][-1]), LISTED, "2026-11-24", runs)
    assert report is not None
    return report


@pytest.fixture
def back(tmp_path: Path) -> Case:
    return CaseFile(
        "back", affected=">=0.7,<0.8.5", old=("vllm-0.8.4",), new=("vllm-0.8.5",)
    ).write(tmp_path)


@pytest.fixture
def fixed_case(tmp_path: Path) -> Case:
    tables = "# why"
    return CaseFile("gone", affected=">=0.15", old=("vllm-0.33.0",), new=(), tables=tables).write(
        tmp_path
    )


@pytest.fixture
def quiet(tmp_path: Path) -> Case:
    return CaseFile("quiet", affected="<0.8.5", old=("vllm-0.8.4",), new=("vllm-0.8.5",)).write(
        tmp_path
    )


def test_a_failure_that_is_back_is_the_only_change_and_gives_the_only_edit(
    back: Case, quiet: Case
) -> None:
    report = watched([back, quiet], Runs({("back", "vllm-0.34.0"): Verdict.REGRESSED}))
    assert [(change.case.id, change.verdict, str(change.release)) for change in report.changes] == [
        ("back", Verdict.REGRESSED, "vllm 0.34.0")
    ]
    changed = [line for line in report.diff().splitlines() if line.startswith(("-", "+"))]
    assert changed[2:] == ['-vllm = ">=0.7,<0.8.5"', '+vllm = ">=0.7,<0.8.5 || >=0.34"']
    assert back.path.read_text().count("||") == 0


def test_the_adjacent_release_is_run_if_it_never_was_so_that_the_new_end_is_observed(
    back: Case,
) -> None:
    runs = Runs({("back", "vllm-0.34.0"): Verdict.REGRESSED})
    (edit,) = watched([back], runs).edits
    assert runs.ran == [("vllm-0.34.0", ["back"]), ("vllm-0.33.0", ["back"])]
    assert [str(end) for end in edit.ends] == [
        "vllm >=0.34 observed (0.34.0 shows it, 0.33.0 passes, on sim)"
    ]


def test_an_adjacent_release_with_the_failure_moves_the_end(back: Case) -> None:
    both = dict.fromkeys([("back", "vllm-0.34.0"), ("back", "vllm-0.33.0")], Verdict.REGRESSED)
    report = watched([back], Runs({**both}))
    assert [edit.after.specifier for edit in report.edits] == [">=0.7,<0.8.5 || >=0.33"]
    assert [str(change.release) for change in report.changes] == ["vllm 0.34.0", "vllm 0.33.0"]


def test_a_fixed_case_is_closed_with_an_observed_end_and_evidence_of_the_fix(
    fixed_case: Case,
) -> None:
    runs = Runs(
        {
            ("gone", "vllm-0.34.0"): Verdict.UNEXPECTEDLY_FIXED,
            ("gone", "vllm-0.33.0"): Verdict.REPRODUCED,
        }
    )
    report, table, count = write_look(watched([fixed_case], runs))
    assert (report.written, table, count) == (
        True,
        fixed_case.directory.parent / "verdicts.json",
        2,
    )
    closed = load_case(fixed_case.path)
    assert closed.affected_text() == "vllm >=0.15,<0.34"
    assert closed.evidence.fixed == ("vllm-0.34.0",)
    assert fixed_case.path.read_text().endswith("# why\n")
    (end,) = [end for end in boundaries(closed, read_table([closed])) if end.outside == "0.34.0"]
    assert str(end) == "vllm <0.34 observed (0.33.0 shows it, 0.34.0 passes, on sim)"


def test_verdicts_as_expected_are_recorded_and_change_nothing(back: Case, quiet: Case) -> None:
    before = back.path.read_text()
    report, _, count = write_look(watched([back, quiet], Runs({})))
    assert (report.changes, report.edits, report.diff(), count) == ((), (), "", 2)
    assert back.path.read_text() == before
    assert [entry.verdict for entry in read_table([back]).of_case("back")] == [Verdict.FIXED]


def test_a_case_file_that_changed_meanwhile_is_not_overwritten(back: Case) -> None:
    report = watched([back], Runs({("back", "vllm-0.34.0"): Verdict.REGRESSED}))
    back.path.write_text(back.path.read_text() + "# mine\n")
    with pytest.raises(CaseFileError, match="changed during the run"):
        write_look(report)
    assert "||" not in back.path.read_text()


def test_what_an_editor_saves_while_the_disk_is_slow_is_not_overwritten(
    back: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = watched([back], Runs({("back", "vllm-0.34.0"): Verdict.REGRESSED}))
    saved = back.path.read_text() + "# mine\n"

    def slow(descriptor: int) -> None:
        back.path.write_text(saved)

    monkeypatch.setattr(os, "fsync", slow)
    with pytest.raises(CaseFileError, match="changed during the run"):
        write_look(report)
    assert back.path.read_text() == saved
    (edit,) = report.edits
    back.path.write_text(edit.new_text)
    edit.take_back()
    assert back.path.read_text() == saved
    assert not list(back.directory.glob(".*.part"))


@pytest.mark.parametrize("harm", ["a case file has changed", "the table cannot be written"])
def test_all_edits_are_written_or_none(
    back: Case, fixed_case: Case, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = {("back", "vllm-0.34.0"): Verdict.REGRESSED}
    outcomes |= {("gone", "vllm-0.34.0"): Verdict.UNEXPECTEDLY_FIXED}
    report = watched([back, fixed_case], Runs({**outcomes}))
    _, second = report.edits
    if harm == "a case file has changed":
        second.case.path.write_text(f"{second.text}# mine\n")
    else:
        table = back.directory.parent / "verdicts.json"
        table.mkdir()
        (table / "file").touch()
    before = {edit.case.id: edit.case.path.read_text() for edit in report.edits}
    with pytest.raises(UsageError):
        write_look(report)
    assert {edit.case.id: edit.case.path.read_text() for edit in report.edits} == before


def test_an_unclear_verdict_is_a_change_without_an_edit(back: Case) -> None:
    report = watched([back], Runs({("back", "vllm-0.34.0"): Verdict.INCONCLUSIVE}))
    assert [(change.verdict, change.by_hand) for change in report.changes] == [
        (Verdict.INCONCLUSIVE, "")
    ]
    assert report.edits == ()


@pytest.mark.parametrize(
    ("variant", "words"),
    [(None, "its tests disagree"), ("form", "only a variant is not as expected")],
    ids=["tests disagree", "a variant"],
)
def test_what_a_range_cannot_say_is_left_to_a_person(
    tmp_path: Path, variant: str | None, words: str
) -> None:
    case = CaseFile("some", affected="<0.9", tables="[variants.form]\naffected = false").write(
        tmp_path
    )
    shown = result("some", "vllm-0.34.0", Verdict.REGRESSED, "a", variant)
    mixed = [shown, result("some", "vllm-0.34.0", Verdict.FIXED, "b")]
    report = watched([case], Runs({("some", "vllm-0.34.0"): mixed}))
    assert [change.verdict for change in report.changes] == [Verdict.REGRESSED]
    assert words in report.changes[0].by_hand
    assert report.edits == ()


def test_a_release_of_vllm_decides_about_the_library_that_a_case_is_about(tmp_path: Path) -> None:
    case = CaseFile("library", affected={"xgrammar": "<0.2"}, old=("vllm-0.33.0",)).write(tmp_path)
    (edit,) = watched([case], Runs({("library", "vllm-0.34.0"): Verdict.REGRESSED})).edits
    assert (edit.before.package, edit.after.specifier) == ("xgrammar", f"<0.2 || >={XGRAMMAR}")


def test_which_of_several_packages_to_correct_is_left_to_a_person(tmp_path: Path) -> None:
    case = CaseFile("pair", affected={"xgrammar": "<0.2", "ray": ">=2"}).write(tmp_path)
    report = watched([case], Runs({("pair", "vllm-0.34.0"): Verdict.REGRESSED}))
    assert "several packages decide" in report.changes[0].by_hand
    assert report.edits == ()


def test_releases_with_changes_stay_new_until_the_edits_are_written(
    back: Case, fixed_case: Case
) -> None:
    old = WatchedRelease("vllm", Version("0.32.0"))
    runs = Runs(
        {("back", "vllm-0.34.0"): Verdict.REGRESSED, ("gone", "vllm-0.32.0"): Verdict.REPRODUCED}
    )
    report = watched([back], runs, old, NEW)
    assert report.seen_releases == (old,)
    assert report.unexpected_releases == (NEW,)
    assert write_look(report)[0].seen_releases == (old, NEW)


def test_a_release_that_cannot_be_built_stays_new(back: Case) -> None:
    runs = Runs({("back", "vllm-0.34.0"): Verdict.INCONCLUSIVE}, unbuilt=("vllm-0.34.0",))
    report = watched([back], runs)
    assert (report.seen_releases, report.changes, report.unbuilt) == ((), (), ("vllm-0.34.0",))
    assert "vllm-0.34.0  could not be built" in to_terminal(report.report())


def test_an_interrupted_run_gives_no_report(back: Case) -> None:
    assert (
        look(
            plan([NEW], [back], LISTED["vllm"][-1]),
            LISTED,
            "2026-11-24",
            Runs({}, interrupted=True),
        )
        is None
    )


def test_the_report_says_the_same_as_lines_markdown_and_json(back: Case, quiet: Case) -> None:
    report = watched([back, quiet], Runs({("back", "vllm-0.34.0"): Verdict.REGRESSED}))
    assert to_terminal(report.report()).splitlines() == [
        "New releases, 2026-11-24",
        "",
        "release      environment  verdicts",
        "vllm 0.34.0  vllm-0.34.0  1 FIXED, 1 REGRESSED",
        "",
        "verdict    case  release      device  failure",
        "REGRESSED  back  vllm 0.34.0  sim     one result",
        "",
        "back on vllm 0.34.0:",
        "  REGRESSED: why",
        "",
        "Ranges to correct:",
        "case  range              corrected               new ends",
        "back  vllm >=0.7,<0.8.5  >=0.7,<0.8.5 || >=0.34  "
        "vllm >=0.34 observed (0.34.0 shows it, 0.33.0 passes, on sim)",
    ]
    markdown = report.markdown()
    assert "| REGRESSED | back | vllm 0.34.0 | sim | one result |" in markdown.replace(
        "` ", ""
    ).replace(" `", "")
    assert report.diff().rstrip("\n") in markdown
    plain = report.to_json()
    assert [(edit["case"], edit["package"], edit["after"]) for edit in plain["edits"]] == [
        ("back", "vllm", ">=0.7,<0.8.5 || >=0.34")
    ]
    assert plain["diff"] == report.diff()
