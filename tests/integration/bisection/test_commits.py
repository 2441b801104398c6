"""Bisection over commits: what is run and what is not, skipped commits, merges, ends, confirmation, resuming. Runs are a stand-in's."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.bisection import culprit as culprits
from pytest_vllm_regress.bisection.candidates import commit_environments
from pytest_vllm_regress.bisection.commits import History, end_of, history
from pytest_vllm_regress.bisection.culprit import Culprit, Hunt, find, hunt_json, report
from pytest_vllm_regress.bisection.search import Notes
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.environments import bases
from pytest_vllm_regress.environments.git import Repository
from pytest_vllm_regress.environments.sources import PROJECTS
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.runner import runner as runs
from tests.helpers.histories import BROKEN, WORKS, StandIn
from tests.helpers.repositories import Maker
from tests.unit.bisection.test_bisect import CASE

VLLM = PROJECTS["vllm"]


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return CASE.write(tmp_path / "cases")


@pytest.fixture(autouse=True)
def index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bases, "newest_release", lambda package, day: "0.1")
    monkeypatch.setattr(bases, "releases", lambda package: ())


def hunted(
    case: Case, made: Maker, stand_in: StandIn, tmp_path: Path, trials: int = 1, **more: object
) -> tuple[Hunt, Notes, tuple[Culprit, ...]]:
    between = history(VLLM, Repository.at(made.place), "v0.1", "main", **more)  # type: ignore[arg-type]
    hunt = Hunt(case, between, commit_environments(case, "vllm", "vllm-0.1"), 2, trials)
    notes = Notes(tmp_path / "notes.json", ["demo"])
    return hunt, notes, find(hunt, notes, stand_in, None, lambda line: None)


def subjects(between: History) -> list[str]:
    return [group.first.subject for group in between.groups]


def test_what_changes_nothing_that_is_imported_is_grouped_with_the_commit_before(made: Maker) -> None:
    between = history(VLLM, Repository.at(made.place), "v0.1", "main")
    assert subjects(between) == [
        "first (#1)",
        "a refactoring that does not import (#4)",
        "moved (#5)",
        "Merge pull request #7 from mend",
        "after (#8)",
    ]
    assert [len(group.others) for group in between.groups] == [2, 0, 1, 0, 0]
    assert between.every == 8
    assert between.parent(between.groups[3]).subject == "tests (#6)"
    assert history(VLLM, Repository.at(made.place), "main", "v0.1") == between
    assert "mended" in subjects(history(VLLM, Repository.at(made.place), "v0.1", "main", first_parent=False))


def test_the_merge_that_mended_it_is_found_and_confirmed(case: Case, made: Maker, tmp_path: Path) -> None:
    stand_in = StandIn(made)
    hunt, notes, (found,) = hunted(case, made, stand_in, tmp_path)
    assert (found.commit.subject, found.is_fix, found.confirmed) == ("Merge pull request #7 from mend", True, True)
    assert found.parent.subject == "tests (#6)"
    assert found.pull_request == "https://github.com/vllm-project/vllm/pull/7"
    assert found.release == "0.2"
    assert stand_in.ran.count(found.parent.id[:10]) == culprits.CONFIRMING_RUNS
    assert stand_in.ran.count(found.commit.id[:10]) == culprits.CONFIRMING_RUNS + 1
    searching = len(stand_in.ran) - 2 * culprits.CONFIRMING_RUNS
    assert searching <= math.ceil(math.log2(len(hunt.history.groups))) + 2
    text = "\n".join(report(hunt, notes, [found]))
    assert f"demo: fixed by {found.commit.id[:10]} (2025-03-09) Merge pull request #7" in text
    assert f"vllm-regress run demo --env 'vllm-0.1+vllm@{found.parent.id[:10]}' --source vllm=CLONE" in text
    assert "passed 2 of 2 times, its parent" in text
    plain = hunt_json(hunt, notes, [found])
    assert (plain["every"], plain["candidates"], plain["changes"][0]["first_release"]) == (8, 5, "0.2")


def test_a_commit_that_does_not_import_is_tried_once_skipped_and_named(case: Case, made: Maker, tmp_path: Path) -> None:
    made.git("checkout", "--quiet", "-B", "main", "main~3")  # up to "moved"
    made.commit("mended at once (#9)", {"vllm/core/engine.py": "broken = False\nimport nothing\n"})
    made.commit("and imports (#10)", {"vllm/core/engine.py": WORKS})
    stand_in = StandIn(made)
    hunt, notes, (found,) = hunted(case, made, stand_in, tmp_path)
    assert found.commit.subject == "and imports (#10)"
    assert [each.subject for each in found.doubtful] == ["mended at once (#9)"]
    assert found.parent.subject == "moved (#5)"
    assert found.confirmed
    doubtful = found.doubtful[0].id[:10]
    assert stand_in.ran.count(doubtful) == 1
    text = "\n".join(report(hunt, notes, [found]))
    assert f"skipped {doubtful} mended at once (#9): INCONCLUSIVE" in text
    assert f"in doubt: {doubtful}" in text


def test_a_break_is_found_too_inside_a_merged_branch(case: Case, made: Maker, tmp_path: Path) -> None:
    made.git("checkout", "--quiet", "-b", "bad-idea")
    made.commit("harmless", {"vllm/other.py": "1"})
    made.commit("harmful (#11)", {"vllm/core/engine.py": BROKEN})
    made.git("checkout", "--quiet", "main")
    made.merge("bad-idea", "Merge a bad idea")
    between = history(VLLM, Repository.at(made.place), "v0.2", "main", first_parent=False)
    hunt = Hunt(case, between, commit_environments(case, "vllm", None))
    (found,) = find(hunt, Notes(tmp_path / "n", ["d"]), StandIn(made), None, lambda line: None)
    assert (found.commit.subject, found.is_fix) == ("harmful (#11)", False)
    assert found.release == ""
    assert "in no release yet" in found.lines()[-1]


def test_a_racy_failure_needs_trials_and_its_rate_is_told(case: Case, made: Maker, tmp_path: Path) -> None:
    stand_in = StandIn(made, chance=lambda run: run % 3 == 0)
    _, _, (found,) = hunted(case, made, stand_in, tmp_path, trials=4)
    assert found.commit.subject == "Merge pull request #7 from mend"
    assert found.confirmed
    assert (found.seen.runs, found.seen.bad) == (8, 0)
    assert 0 < found.seen_parent.bad < found.seen_parent.runs == 8
    assert f"its parent {found.parent.id[:10]} failed {found.seen_parent.bad} of 8 times" in found.lines()[0]


@pytest.mark.parametrize("at", range(1, 9))
def test_interrupted_anywhere_it_goes_on(case: Case, made: Maker, tmp_path: Path, at: int) -> None:
    first = StandIn(made, interrupt_at=at)
    with contextlib.suppress(KeyboardInterrupt):
        hunted(case, made, first, tmp_path)
    second = StandIn(made)
    _, _, (found,) = hunted(case, made, second, tmp_path)
    assert found.commit.subject == "Merge pull request #7 from mend"
    whole = StandIn(made)
    hunted(case, made, whole, tmp_path / "other")
    again = 1 if at == len(first.ran) and len(first.ran) + len(second.ran) > len(whole.ran) else 0
    assert (
        len(first.ran) + len(second.ran) == len(whole.ran) + again
    )  # what was cut off between two confirming runs is run anew


def test_ends_are_revisions_or_releases(made: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Repository.at(made.place)
    assert end_of(VLLM, repository, "0.1", "main") == made.git("rev-parse", "v0.1")
    assert end_of(VLLM, repository, "main~1", "main") == made.git("rev-parse", "main~1")
    monkeypatch.setattr(bases, "release_date", lambda package, version: datetime.date(2025, 3, 4))
    assert end_of(VLLM, repository, "0.1.5", "main") == made.git("rev-parse", "main~5")  # the last one of 3 March
    made.git("checkout", "--quiet", "-b", "release", "main~2")
    tip = made.commit("only on the release's branch", {"vllm/r.py": ""})
    between = history(VLLM, repository, tip, "main")
    assert between.groups[0].first.id == made.git("merge-base", "release", "main")


def test_bad_ends_are_refused(case: Case, made: Maker, tmp_path: Path) -> None:
    repository = Repository.at(made.place)
    with pytest.raises(UsageError, match="are one commit"):
        history(VLLM, repository, "main", "v0.2")
    with pytest.raises(UsageError, match="no commit 'v9'"):
        history(VLLM, repository, "v9", "main")
    between = history(VLLM, repository, "v0.1", "main")
    good, bad = made.git("rev-parse", "v0.1"), made.git("rev-parse", "main")
    hunt = Hunt(case, between, commit_environments(case, "vllm", None), ends=(good, bad))
    stand_in = StandIn(made)
    with pytest.raises(UsageError, match=r"first \(#1\)\) shows the failure, and was given as the good end"):
        find(hunt, Notes(tmp_path / "n", ["d"]), stand_in, None, lambda line: None)
    made.git("clone", "--quiet", "--depth=2", f"file://{made.place}", str(tmp_path / "shallow"))
    with pytest.raises(UsageError, match="git fetch --unshallow"):
        history(VLLM, Repository.at(tmp_path / "shallow"), "HEAD~1", "HEAD")
    with pytest.raises(UsageError, match="xgrammar cannot be run from source"):
        commit_environments(case, "xgrammar", None)


def test_ends_that_agree_are_two_runs(case: Case, made: Maker, tmp_path: Path) -> None:
    between = history(VLLM, Repository.at(made.place), "v0.1", "main~3")
    hunt = Hunt(case, between, commit_environments(case, "vllm", None))
    stand_in = StandIn(made)
    notes = Notes(tmp_path / "n", ["d"])
    assert find(hunt, notes, stand_in, None, lambda line: None) == ()
    assert len(stand_in.ran) == 2
    assert "no such change found between" in report(hunt, notes, ())[-1]


def test_the_command_goes_on_from_releases_to_the_commit(
    case: Case, made: Maker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from packaging.version import Version

    from pytest_vllm_regress.bisection import answer
    from pytest_vllm_regress.cli import bisect

    class Both(StandIn):
        def run(self, jobs: Sequence[runs.Job]) -> runs.Outcome:
            (job,) = jobs
            if "@" in job.environment:
                return super().run(jobs)
            verdict = Verdict.REPRODUCED if job.environment == "vllm-0.1" else Verdict.FIXED
            return runs.Outcome(RunResult((TestResult("demo", "t", verdict, "as seen", "sim", job.environment),)))

    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bisect, "releases", lambda package: tuple(map(Version, ("0.1", "0.2"))))
    monkeypatch.setattr(answer.Answer, "_day", lambda self, version: "2025-03-01")
    started: list[functools.partial[int]] = []

    def runner(build: object, options: object, say: object, start: functools.partial[int]) -> Both:
        started.append(start)
        return Both(made)

    monkeypatch.setattr(runs, "Runner", runner)
    ran = ["--cases", str(case.directory.parent), "bisect", "demo", "--releases", ">=0.1", "--no-prefetch"]
    assert cli.main([*ran, "--source", str(made.place), "--find-fix"]) == 0
    said = capsys.readouterr().out
    assert "fixed between vllm v0.1" in said
    assert "Merge pull request #7 from mend; https://github.com/vllm-project/vllm/pull/7; first release: 0.2" in said
    assert cli.main([*ran, "--source", str(made.place), "--find-break"]) == 1
    assert cli.main([*ran[:4], "--commits", "--good", "main", "--bad", "v0.1", "--no-prefetch"]) == 0
    assert [start.keywords["to_stderr"] for start in started] == [False, False, False]
    capsys.readouterr()
    assert cli.main([*ran, "--source", str(made.place), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["commits"][0]["candidates"] == 5
    assert started[-1].keywords["to_stderr"]


@pytest.mark.parametrize("at", [1, 2, 100, 255, 256, 318, 319])
def test_over_three_hundred_candidates_it_takes_at_most_twelve_runs(case: Case, tmp_path: Path, at: int) -> None:
    made = Maker(tmp_path / "long")
    made.grow(
        {"vllm/__init__.py": "", "vllm/engine.py": WORKS if n >= at else BROKEN, "vllm/n.py": str(n)}
        for n in range(320)
    )
    low = made.git("rev-list", "--max-parents=0", "main")
    hunt = Hunt(
        case, history(VLLM, Repository.at(made.place), low, "main"), commit_environments(case, "vllm", "vllm-0.1")
    )
    stand_in = StandIn(made)
    (found,) = find(hunt, Notes(tmp_path / "n", ["d"]), stand_in, None, lambda line: None)
    assert (len(hunt.history.groups), found.commit.subject, found.confirmed) == (320, f"commit {at}", True)
    assert len(stand_in.ran) - 2 * culprits.CONFIRMING_RUNS <= 12


@pytest.mark.parametrize(
    ("fixed_by", "documented"),
    [
        ((), None),
        (("https://github.com/vllm-project/vllm/pull/7",), True),
        (("https://github.com/vllm-project/vllm/pull/8", "https://github.com/vllm-project/vllm/issues/7"), False),
    ],
)
def test_what_the_case_names_as_its_fix_is_checked(
    case: Case, made: Maker, tmp_path: Path, fixed_by: tuple[str, ...], documented: bool | None
) -> None:
    _, _, (found,) = hunted(dataclasses.replace(case, fixed_by=fixed_by), made, StandIn(made), tmp_path)
    assert found.documented is documented
    assert found.to_json()["documented"] is documented
    assert ("and not this commit or its pull request" in "\n".join(found.lines())) == (documented is False)
