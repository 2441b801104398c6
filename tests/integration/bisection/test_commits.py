"""Bisection over commits: grouping, skipped commits, merges, ends, confirmation and resuming.

Runs are simulated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.results import RunResult, TestResult, read_results
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.environments import bases
from pytest_vllm_regress.environments.git import Repository
from pytest_vllm_regress.environments.sources import PROJECTS, Source, set_clones
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.history.bisect import commit_environments
from pytest_vllm_regress.history.candidates import CandidateRunner, open_results
from pytest_vllm_regress.history.commits import (
    CommitHistory,
    CommitReport,
    CommitSearch,
    commits_between,
    end_of,
    first_release,
    search_commits,
)
from pytest_vllm_regress.runner.batch import Batch, RunOutcome
from pytest_vllm_regress.runner.executors import SequentialExecutor
from pytest_vllm_regress.runner.progress import Progress, WithBar
from tests.helpers.cases import project_cases
from tests.helpers.histories import BROKEN, WORKS, StandIn
from tests.helpers.repositories import RepositoryBuilder
from tests.unit.history.test_bisect import CASE

VLLM = PROJECTS["vllm"]


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return CASE.write(tmp_path / "cases")


@pytest.fixture(autouse=True)
def index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bases, "newest_release", lambda package, day: "0.1")
    monkeypatch.setattr(bases, "releases", lambda package: ())


def search_clone(
    case: Case,
    builder: RepositoryBuilder,
    stand_in: StandIn,
    folder: Path,
    trials: int = 1,
    **more: object,
) -> CommitReport:
    """Search from v0.1 to main; the log of the search is kept in ``folder``."""
    between = commits_between(VLLM, Repository.at(builder.place), "v0.1", "main", **more)  # type: ignore[arg-type]
    return run(
        CommitSearch(case, between, commit_environments(case, "vllm", "vllm-0.1")),
        stand_in,
        folder,
        trials,
    )


def run(
    search: CommitSearch, stand_in: StandIn | WorksFrom, folder: Path, trials: int = 1
) -> CommitReport:
    runner = CandidateRunner(stand_in.run, None, lambda line: None, trials=trials)
    with contextlib.closing(open_results(["demo"], folder / "results.jsonl")) as results:
        return search_commits(search, results, runner)


def subjects(between: CommitHistory) -> list[str]:
    return [group.first.subject for group in between.groups]


def test_commits_that_change_nothing_imported_join_the_commit_before(
    builder: RepositoryBuilder,
) -> None:
    between = commits_between(VLLM, Repository.at(builder.place), "v0.1", "main")
    assert subjects(between) == [
        "first (#1)",
        "a refactoring that does not import (#4)",
        "moved (#5)",
        "Merge pull request #7 from fix",
        "after (#8)",
    ]
    assert [len(group.others) for group in between.groups] == [2, 0, 1, 0, 0]
    assert between.total == 8
    assert between.parent(between.groups[3]).subject == "tests (#6)"
    assert commits_between(VLLM, Repository.at(builder.place), "main", "v0.1") == between
    assert "fixed" in subjects(
        commits_between(VLLM, Repository.at(builder.place), "v0.1", "main", first_parent=False)
    )


def test_the_merge_with_the_fix_is_found_and_confirmed(
    case: Case, builder: RepositoryBuilder, tmp_path: Path
) -> None:
    stand_in = StandIn(builder)
    report = search_clone(case, builder, stand_in, tmp_path)
    (culprit,) = report.culprits
    assert (culprit.commit.subject, culprit.is_fix, culprit.confirmed) == (
        "Merge pull request #7 from fix",
        True,
        True,
    )
    assert culprit.parent.subject == "tests (#6)"
    assert culprit.pull_request == "https://github.com/vllm-project/vllm/pull/7"
    assert str(culprit.release) == "0.2 (a tag of the clone)"
    assert culprit.changed_requirements == ()
    assert stand_in.ran.count(culprit.parent.id[:10]) == CommitSearch.confirming_runs
    assert stand_in.ran.count(culprit.commit.id[:10]) == CommitSearch.confirming_runs + 1
    searching = len(stand_in.ran) - 2 * CommitSearch.confirming_runs
    assert searching <= math.ceil(math.log2(len(report.search.history.groups))) + 2
    text = "\n".join(report.lines())
    assert f"demo: fixed by {culprit.commit.id[:10]} (2025-03-09) Merge pull request #7" in text
    assert (
        f"vllm-regress run demo --env 'vllm-0.1+vllm@{culprit.parent.id[:10]}' --source vllm=CLONE"
        in text
    )
    assert "passed 2 of 2 times, its parent" in text
    plain = report.to_json()
    assert (plain["every"], plain["candidates"], plain["changes"][0]["first_release"]) == (
        8,
        5,
        "0.2",
    )


def test_a_commit_that_changes_requirements_may_not_be_the_cause(
    case: Case, builder: RepositoryBuilder, tmp_path: Path
) -> None:
    builder.git("checkout", "--quiet", "-B", "main", "main~3")  # up to "moved"
    fixed = {"vllm/core/engine.py": WORKS, "requirements/common.txt": "uvicorn>=0.43"}
    builder.commit("fixed, and another uvicorn (#9)", fixed)
    (culprit,) = search_clone(case, builder, StandIn(builder), tmp_path).culprits
    assert culprit.changed_requirements == ("requirements/common.txt",)
    assert any(line.startswith("a package may be the cause, and not ") for line in culprit.lines())
    assert culprit.to_json()["changed_requirements"] == ("requirements/common.txt",)


def test_a_commit_that_does_not_import_is_tried_once_skipped_and_named(
    case: Case, builder: RepositoryBuilder, tmp_path: Path
) -> None:
    builder.git("checkout", "--quiet", "-B", "main", "main~3")  # up to "moved"
    builder.commit(
        "fixed at once (#9)", {"vllm/core/engine.py": "broken = False\nimport nothing\n"}
    )
    builder.commit("and imports (#10)", {"vllm/core/engine.py": WORKS})
    stand_in = StandIn(builder)
    report = search_clone(case, builder, stand_in, tmp_path)
    (culprit,) = report.culprits
    assert culprit.commit.subject == "and imports (#10)"
    assert [commit.subject for commit in culprit.doubtful] == ["fixed at once (#9)"]
    assert culprit.parent.subject == "moved (#5)"
    assert culprit.confirmed
    doubtful = culprit.doubtful[0].id[:10]
    assert stand_in.ran.count(doubtful) == 1
    text = "\n".join(report.lines())
    assert f"skipped {doubtful} fixed at once (#9): INCONCLUSIVE" in text
    assert f"in doubt: {doubtful}" in text


def test_a_break_inside_a_merged_branch_is_found(
    case: Case, builder: RepositoryBuilder, tmp_path: Path
) -> None:
    builder.git("checkout", "--quiet", "-b", "bad-idea")
    builder.commit("harmless", {"vllm/other.py": "1"})
    builder.commit("harmful (#11)", {"vllm/core/engine.py": BROKEN})
    builder.git("checkout", "--quiet", "main")
    builder.merge("bad-idea", "Merge a bad idea")
    between = commits_between(
        VLLM, Repository.at(builder.place), "v0.2", "main", first_parent=False
    )
    search = CommitSearch(case, between, commit_environments(case, "vllm", None))
    (culprit,) = run(search, StandIn(builder), tmp_path).culprits
    assert (culprit.commit.subject, culprit.is_fix) == ("harmful (#11)", False)
    assert culprit.lines()[-1].endswith("first release: unknown")


@pytest.mark.parametrize(
    ("commit", "subject", "first"),
    [
        ("0e4254492f", "fix (#16863)", "0.8.5 (the sources of its wheel)"),
        ("0123456789", "another commit (#16863)", "0.8.5 (recorded verdicts of the case)"),
    ],
)
def test_the_first_release_of_a_clone_without_tags_is_what_was_observed(
    builder: RepositoryBuilder, commit: str, subject: str, first: str
) -> None:
    (case,) = (case for case in project_cases() if case.id == "vllm-17173")
    repository = FrozenTags(builder.place)
    head = repository.commit("main")
    source = Source(VLLM, repository, dataclasses.replace(head, id=commit, subject=subject))
    assert str(first_release(case, source, is_fix=True)) == first


class FrozenTags(Repository):
    """A clone without tags, whose commits need not exist."""

    def tags(self, *options: str) -> dict[str, str]:
        return {}


def test_a_racy_failure_needs_trials_and_its_rate_is_reported(
    case: Case, builder: RepositoryBuilder, tmp_path: Path
) -> None:
    stand_in = StandIn(builder, chance=lambda run: run % 3 == 0)
    (culprit,) = search_clone(case, builder, stand_in, tmp_path, trials=4).culprits
    assert culprit.commit.subject == "Merge pull request #7 from fix"
    assert culprit.confirmed
    assert (culprit.result.runs, culprit.result.bad) == (8, 0)
    assert 0 < culprit.parent_result.bad < culprit.parent_result.runs == 8
    assert (
        f"its parent {culprit.parent.id[:10]} failed {culprit.parent_result.bad} of 8 times"
        in culprit.lines()[0]
    )


@pytest.fixture(scope="module")
def runs(original: RepositoryBuilder, tmp_path_factory: pytest.TempPathFactory) -> int:
    """The number of runs of a search that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    whole = StandIn(original)
    search_clone(CASE.write(folder / "cases"), original, whole, folder)
    return len(whole.ran)


@pytest.mark.parametrize("at", range(1, 9))
def test_an_interrupted_search_resumes(
    case: Case, builder: RepositoryBuilder, tmp_path: Path, at: int, runs: int
) -> None:
    first = StandIn(builder, interrupt_at=at)
    with contextlib.suppress(KeyboardInterrupt):
        search_clone(case, builder, first, tmp_path)
    second = StandIn(builder)
    (culprit,) = search_clone(case, builder, second, tmp_path).culprits
    assert culprit.commit.subject == "Merge pull request #7 from fix"
    again = 1 if at == len(first.ran) and len(first.ran) + len(second.ran) > runs else 0
    # A confirmation that was interrupted between its two runs starts again.
    assert len(first.ran) + len(second.ran) == runs + again


def test_ends_are_revisions_or_releases(
    builder: RepositoryBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository.at(builder.place)
    assert end_of(VLLM, repository, "0.1") == builder.git("rev-parse", "v0.1")
    assert end_of(VLLM, repository, "main~1") == builder.git("rev-parse", "main~1")
    monkeypatch.setattr(bases, "release_date", lambda package, version: datetime.date(2025, 3, 4))
    assert end_of(VLLM, repository, "0.1.5") == builder.git(
        "rev-parse", "main~5"
    )  # the last one of 3 March
    builder.git("checkout", "--quiet", "-b", "release", "main~2")
    tip = builder.commit("only on the release's branch", {"vllm/r.py": ""})
    between = commits_between(VLLM, repository, tip, "main")
    assert between.groups[0].first.id == builder.git("merge-base", "release", "main")


def test_bad_ends_are_refused(case: Case, builder: RepositoryBuilder, tmp_path: Path) -> None:
    repository = Repository.at(builder.place)
    with pytest.raises(UsageError, match="are the same commit"):
        commits_between(VLLM, repository, "main", "v0.2")
    with pytest.raises(UsageError, match="no commit 'v9'"):
        commits_between(VLLM, repository, "v9", "main")
    between = commits_between(VLLM, repository, "v0.1", "main")
    good, bad = builder.git("rev-parse", "v0.1"), builder.git("rev-parse", "main")
    search = CommitSearch(case, between, commit_environments(case, "vllm", None), ends=(good, bad))
    stand_in = StandIn(builder)
    with pytest.raises(
        UsageError, match=r"first \(#1\)\) shows the failure, but was given as the good end"
    ):
        run(search, stand_in, tmp_path)
    builder.git(
        "clone", "--quiet", "--depth=2", f"file://{builder.place}", str(tmp_path / "shallow")
    )
    with pytest.raises(UsageError, match="git fetch --unshallow"):
        commits_between(VLLM, Repository.at(tmp_path / "shallow"), "HEAD~1", "HEAD")
    with pytest.raises(UsageError, match="xgrammar cannot be run from source"):
        commit_environments(case, "xgrammar", None)


def test_equal_ends_take_two_runs(case: Case, builder: RepositoryBuilder, tmp_path: Path) -> None:
    between = commits_between(VLLM, Repository.at(builder.place), "v0.1", "main~3")
    search = CommitSearch(case, between, commit_environments(case, "vllm", None))
    stand_in = StandIn(builder)
    report = run(search, stand_in, tmp_path)
    assert report.culprits == ()
    assert len(stand_in.ran) == 2
    assert "no such change found between" in report.lines()[-1]


def test_the_command_continues_from_releases_to_the_commit(
    case: Case,
    builder: RepositoryBuilder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    from packaging.version import Version

    from pytest_vllm_regress.history import bisect as bisection

    class Both(StandIn):
        def run(self, jobs: Sequence[Batch]) -> RunOutcome:
            (job,) = jobs
            if "@" in job.environment:
                return super().run(jobs)
            verdict = Verdict.REPRODUCED if job.environment == "vllm-0.1" else Verdict.FIXED
            return RunOutcome(
                RunResult((TestResult("demo", "t", verdict, "as seen", "sim", job.environment),))
            )

    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bisection, "releases", lambda package: tuple(map(Version, ("0.1", "0.2"))))
    monkeypatch.setattr(bisection.ReleaseAnswer, "_day", lambda self, version: "2025-03-01")
    outputs: list[Any] = []
    bars: list[bool] = []

    def run_command(command: object, environment: object, output: object = None) -> int:
        outputs.append(output)
        return 0

    def runner(
        executor: SequentialExecutor, options: object, progress: Callable[[], Progress]
    ) -> Both:
        executor.start([], {})  # as for a batch
        bars.append(isinstance(progress(), WithBar))
        return Both(builder)

    monkeypatch.setattr("pytest_vllm_regress.cli.bisect.BatchRunner", runner)
    monkeypatch.setattr("pytest_vllm_regress.cli.bisect.run_command", run_command)
    ran = [
        "--cases",
        str(case.directory.parent),
        "bisect",
        "demo",
        "--releases",
        ">=0.1",
        "--jobs",
        "1",
    ]
    assert cli.main([*ran, "--source", str(builder.place), "--find", "fix"]) == 0
    output = capsys.readouterr().out
    assert "fixed between vllm v0.1" in output
    (copy,) = (tmp_path / "cache" / "results").iterdir()  # for `show` and `judge`
    assert {"vllm-0.1", "vllm-0.2"} <= {entry.environment for entry in read_results(copy).results}
    assert (
        "Merge pull request #7 from fix; https://github.com/vllm-project/vllm/pull/7; first release: 0.2 (a tag of the clone)"
        in output
    )
    assert cli.main([*ran, "--source", str(builder.place), "--find", "break"]) == 1
    assert cli.main([*ran[:4], "--commits", "--good", "main", "--bad", "v0.1", "--jobs", "1"]) == 0
    file = tmp_path / "cache" / "bisect" / "demo.log"
    assert f"output of builds and pytest: {file}" in output
    assert "0.1: bad in 0 s; at most 1 step left, about 0 s (REPRODUCED: as seen)" in output
    assert [output.name for output in outputs] == [str(file)] * 3
    capsys.readouterr()
    assert cli.main(["-v", *ran, "--source", str(builder.place), "--find", "fix"]) == 0
    assert outputs[3] is None  # our own terminal
    assert bars == [True, True, True, False]
    capsys.readouterr()
    assert cli.main([*ran, "--source", str(builder.place), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["commits"][0]["candidates"] == 5
    assert outputs[-1].name == str(file)
    assert cli.main(["-v", *ran, "--source", str(builder.place), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert outputs[-1] is sys.stderr.buffer


@pytest.fixture(scope="module")
def long_history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CommitHistory]:
    """A clone with 320 commits, each of which could be the first that works."""
    place = tmp_path_factory.mktemp("long") / "clone"
    builder = RepositoryBuilder(place)
    builder.commit_trees({"vllm/__init__.py": "", "vllm/n.py": str(n)} for n in range(320))
    low = builder.git("rev-list", "--max-parents=0", "main")
    return place, commits_between(VLLM, Repository.at(place), low, "main")


@dataclasses.dataclass
class WorksFrom:
    """Fake runner: the failure is fixed in the commit with this number."""

    history: CommitHistory
    at: int
    ran: list[str] = dataclasses.field(default_factory=list)

    def run(self, jobs: Sequence[Batch]) -> RunOutcome:
        (job,) = jobs
        self.ran.append(job.environment.partition("@")[2])
        commits = [group.first for group in self.history.groups]
        (subject,) = (each.subject for each in commits if each.id.startswith(self.ran[-1]))
        works = int(subject.removeprefix("commit ")) >= self.at
        verdict = Verdict.FIXED if works else Verdict.REPRODUCED
        return RunOutcome(
            RunResult((TestResult("demo", "t", verdict, "as seen", "sim", job.environment),))
        )


@pytest.mark.parametrize("at", [1, 2, 100, 255, 256, 318, 319])
def test_over_three_hundred_candidates_it_takes_at_most_twelve_runs(
    case: Case, long_history: tuple[Path, CommitHistory], tmp_path: Path, at: int
) -> None:
    place, history = long_history
    set_clones([str(place)])
    search = CommitSearch(case, history, commit_environments(case, "vllm", "vllm-0.1"))
    stand_in = WorksFrom(history, at)
    (culprit,) = run(search, stand_in, tmp_path).culprits
    assert (len(search.history.groups), culprit.commit.subject, culprit.confirmed) == (
        320,
        f"commit {at}",
        True,
    )
    assert len(stand_in.ran) - 2 * CommitSearch.confirming_runs <= 12


@pytest.mark.parametrize(
    ("fixed_by", "documented"),
    [
        ((), None),
        (("https://github.com/vllm-project/vllm/pull/7",), True),
        (
            (
                "https://github.com/vllm-project/vllm/pull/8",
                "https://github.com/vllm-project/vllm/issues/7",
            ),
            False,
        ),
    ],
)
def test_what_the_case_names_as_its_fix_is_checked(
    case: Case,
    builder: RepositoryBuilder,
    tmp_path: Path,
    fixed_by: tuple[str, ...],
    documented: bool | None,
) -> None:
    (culprit,) = search_clone(
        dataclasses.replace(case, fixed_by=fixed_by), builder, StandIn(builder), tmp_path
    ).culprits
    assert culprit.documented is documented
    assert culprit.to_json()["documented"] is documented
    assert ("and not this commit or its pull request" in "\n".join(culprit.lines())) == (
        documented is False
    )
