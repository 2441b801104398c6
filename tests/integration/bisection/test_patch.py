"""The effect of a patch on cases: the base of the comparison, the order of the cases, each effect,
and the command. Runs are simulated."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.observation import Observation
from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.cli import try_
from pytest_vllm_regress.environments import bases, git
from pytest_vllm_regress.environments.downloads import Downloads
from pytest_vllm_regress.environments.git import Repository
from pytest_vllm_regress.environments.sources import Source, find_source, parse_name
from pytest_vllm_regress.errors import Kind, UsageError
from pytest_vllm_regress.fuzz.exercise.comparison import ExerciseComparison
from pytest_vllm_regress.fuzz.exercise.differences import Difference, Grade
from pytest_vllm_regress.history.case_coverage import CaseCoverage
from pytest_vllm_regress.history.changed_functions import ChangedFunctions
from pytest_vllm_regress.history.patch import (
    KEPT_BASES,
    PatchEffect,
    base_of,
    changed_files,
    effect_on,
    nearness,
)
from pytest_vllm_regress.runner.batch import Batch
from pytest_vllm_regress.util.sizes import GIB
from tests.helpers.repositories import RepositoryBuilder
from tests.unit.history.test_bisect import CASE


@pytest.fixture
def builder(tmp_path: Path) -> RepositoryBuilder:
    """main with a fix of pull request 7, and a branch of one commit."""
    builder = RepositoryBuilder(tmp_path / "tree")
    builder.commit(
        "first (#1)",
        {
            "vllm/__init__.py": "",
            "vllm/engine.py": "1",
            "vllm/grammar.py": "1",
            "vllm/core.py": "1",
        },
    )
    builder.commit("fix the grammar (#7)", {"vllm/grammar.py": "2"})
    builder.commit("upstream goes on (#8)", {"vllm/core.py": "2"})
    return builder


@pytest.fixture(autouse=True)
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("VLLM_REGRESS_SOURCE_VLLM", "")
    monkeypatch.setattr(bases, "newest_release", lambda package, day: "0.8.4")
    monkeypatch.setattr(bases, "release_date", lambda package, version: datetime.date(2025, 2, 1))


def case_named(root: Path, name: str, fixed_by: str = "", test: str = "") -> Case:
    keys = (
        f'fixed-by = ["https://github.com/vllm-project/vllm/pull/{fixed_by}"]' if fixed_by else ""
    )
    return dataclasses.replace(CASE, id=name, keys=keys).write(
        root / "cases", {f"test_{name}.py": test}
    )


def tree(builder: RepositoryBuilder) -> Source:
    named = parse_name(f"vllm@{builder.place}")
    assert named is not None
    return find_source(named)


def test_a_tree_is_compared_with_where_its_branch_left_upstream(builder: RepositoryBuilder) -> None:
    with pytest.raises(UsageError, match="there is no patch to try"):
        base_of(tree(builder), None)
    (builder.place / "vllm/engine.py").write_text("2")
    assert base_of(tree(builder), None).id == builder.git("rev-parse", "HEAD")
    builder.git("checkout", "--quiet", "-b", "mine", "main~1")
    builder.commit("my patch", {"vllm/engine.py": "3"})
    (builder.place / "vllm/new.py").write_text("")
    base = base_of(tree(builder), None)
    assert base.id == builder.git("rev-parse", "main~1")
    assert changed_files(tree(builder), base) == {"vllm/engine.py", "vllm/new.py"}
    assert changed_files(tree(builder), base_of(tree(builder), "main")) == {
        "vllm/engine.py",
        "vllm/new.py",
        "vllm/core.py",
    }


def test_fix_text_and_coverage_of_a_case_say_which_modules_concern_it(
    builder: RepositoryBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [
        case_named(tmp_path, "a-far"),
        case_named(tmp_path, "b-named", test="from vllm.grammar import x\n"),
        case_named(tmp_path, "c-fixed-there", fixed_by="7"),
        case_named(tmp_path, "d-fixed-elsewhere", fixed_by="8"),
        case_named(
            tmp_path, "e-fixed-beside", fixed_by="16863"
        ),  # outputs.py, v1/engine/output_processor.py
    ]
    changed = frozenset({"vllm/grammar.py", "vllm/v1/engine/new.py"})
    functions = ChangedFunctions({"vllm.grammar": ("run", "stop")}, ())
    coverage = CaseCoverage("1.0", ("vllm.grammar:run", "vllm.x:run"), {"a-far": (0, 1)})
    monkeypatch.setattr(CaseCoverage, "load", lambda: coverage)
    assert nearness(cases, changed, functions, tree(builder).repository) == {
        "a-far": (0, 0, 1, 0),
        "b-named": (0, 1, 0, 0),
        "c-fixed-there": (1, 0, 0, 0),
        "d-fixed-elsewhere": (0, 0, 0, 0),
        "e-fixed-beside": (0, 0, 0, 2),
    }


def test_the_merge_of_a_pull_request_is_not_its_revert(builder: RepositoryBuilder) -> None:
    merged = builder.commit("[Bugfix] a fix (#71)", {"vllm/engine.py": "fixed"})
    builder.commit("a longer number (#711)", {"vllm/more.py": ""})
    builder.commit('Revert "[Bugfix] a fix (#71)" (#72)', {"vllm/engine.py": "broken"})
    repository = Repository.at(builder.place)
    commit = repository.merge_of("71")
    assert commit is not None
    assert (commit.id, commit.touched) == (merged, ("vllm/engine.py",))
    assert repository.merge_of("72") is not None
    assert repository.merge_of("12") is None


BAD, GOOD, OTHER, NONE = (
    Verdict.REPRODUCED,
    Verdict.FIXED,
    Verdict.INCONCLUSIVE,
    Verdict.NOT_APPLICABLE,
)


@pytest.mark.parametrize(
    ("before", "after", "effect", "tests"),
    [
        ((BAD, GOOD), (BAD, GOOD), PatchEffect.UNCHANGED, ()),
        ((BAD, GOOD), (GOOD, GOOD), PatchEffect.FIXES, ("t0",)),
        ((BAD, GOOD), (GOOD, BAD), PatchEffect.BREAKS, ("t1",)),
        ((GOOD, GOOD), (GOOD, OTHER), PatchEffect.BREAKS, ("t1",)),
        ((BAD, BAD), (OTHER, BAD), PatchEffect.UNCLEAR, ("t0",)),
        ((OTHER,), (GOOD,), PatchEffect.UNCLEAR, ("t0",)),
        ((NONE, GOOD), (NONE, GOOD), PatchEffect.UNCHANGED, ()),
        ((GOOD,), (), PatchEffect.UNCLEAR, ("t0",)),
        ((), (), PatchEffect.UNCLEAR, ()),
    ],
)
def test_the_effect_follows_from_both_sides(
    tmp_path: Path,
    before: Sequence[Verdict],
    after: Sequence[Verdict],
    effect: PatchEffect,
    tests: tuple[str, ...],
) -> None:
    case = case_named(tmp_path, "demo")
    sides = (
        [TestResult("demo", f"t{i}", v, "why", "sim", "e") for i, v in enumerate(side)]
        for side in (before, after)
    )
    change = effect_on(case, *sides)
    assert (change.effect, change.tests) == (effect, tests)
    assert effect_on(case, [], None).effect is PatchEffect.NOT_RUN


def test_a_pytest_that_was_broken_off_is_no_effect_of_the_patch(tmp_path: Path) -> None:
    case = case_named(tmp_path, "demo")
    before = [TestResult("demo", "t", GOOD, "passed", "sim", "e")]
    after = [TestResult("demo", "demo (no test)", OTHER, "pytest had an error", "unknown", "e")]
    effect = effect_on(case, before, after)
    assert (effect.effect, effect.why) == (PatchEffect.UNCLEAR, "pytest had an error")


@pytest.mark.parametrize(
    ("before", "after", "effect"),
    [
        ((), ("requests",), PatchEffect.BREAKS),
        (("requests",), ("requests",), PatchEffect.UNCHANGED),
        (("requests",), ("requests", "free blocks"), PatchEffect.BREAKS),
        (("requests",), (), PatchEffect.UNCHANGED),
        (("requests",), BAD, PatchEffect.BREAKS),
        (BAD, ("requests",), PatchEffect.UNCLEAR),
    ],
)
def test_what_the_base_keeps_of_ended_requests_is_not_broken_by_the_patch(
    tmp_path: Path,
    before: tuple[str, ...] | Verdict,
    after: tuple[str, ...] | Verdict,
    effect: PatchEffect,
) -> None:
    assert effect_on(case_named(tmp_path, "demo"), *map(_keeping, (before, after))).effect is effect


def _keeping(held: tuple[str, ...] | Verdict) -> list[TestResult]:
    """Return the result of a test after which the engine held these, or one with this verdict."""
    if isinstance(held, Verdict):
        return [TestResult("demo", "t", held, "why", "sim", "e")]
    verdict = OTHER if held else GOOD
    return [TestResult("demo", "t", verdict, "why", "sim", "e", held=held)]


@pytest.fixture
def ran(
    builder: RepositoryBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, tuple[str, ...]]]:
    """The batches of ``try``: the side (base, patch) and the ids of the cases."""
    case_named(tmp_path, "breaks")
    case_named(tmp_path, "stays")
    case_named(tmp_path, "unclear")
    case_named(tmp_path, "seen")
    case_named(tmp_path, "fixed", test="from vllm.engine import x\n")
    ran: list[tuple[str, tuple[str, ...]]] = []

    def run_batch(batch: Batch, *_: object) -> RunResult:
        patched = batch.environment.endswith(str(builder.place))
        ran.append(("patch" if patched else "base", tuple(case.id for case in batch.cases)))
        name = batch.environment if patched else batch.environment[: len("vllm-0.8.4+vllm@") + 10]
        verdicts = {
            "breaks": BAD if patched else GOOD,
            "fixed": GOOD if patched else BAD,
            "stays": BAD,
            "unclear": OTHER,
            "seen": OTHER,
        }
        seen = Observation(Kind.HANG, "generate")
        return RunResult(
            tuple(
                TestResult(
                    *(case.id, "t", verdicts[case.id], "as seen" * 99, "sim", name),
                    observation=seen if case.id == "seen" else None,
                )
                for case in batch.cases
            )
        )

    monkeypatch.setattr("pytest_vllm_regress.runner.executors.run_batch", run_batch)
    monkeypatch.setattr(
        "pytest_vllm_regress.runner.executors.build_with_cache", lambda say: lambda name: None
    )
    monkeypatch.setattr(try_, "compare_exercise", lambda *_, **__: ExerciseComparison((), 9))
    monkeypatch.setattr(
        "pytest_vllm_regress.environments.downloads.downloads",
        lambda names: Downloads(tuple(names), 3 * GIB, (), 99 * GIB, tmp_path),
    )
    return ran


def test_the_command_refuses_what_is_no_patch(
    builder: RepositoryBuilder,
    tmp_path: Path,
    ran: list[object],
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["--cases", str(tmp_path / "cases"), "try", str(builder.place)]
    assert cli.main(command) == 2
    assert "there is no patch to try" in capsys.readouterr().err
    (builder.place / "docs.md").write_text("no code")
    assert cli.main([*command, "--base", "HEAD"]) == 2
    assert "nothing to try" in capsys.readouterr().err
    assert cli.main(["--cases", str(tmp_path / "cases"), "try", str(tmp_path)]) == 2
    assert "not a git repository" in capsys.readouterr().err
    assert not ran


def test_what_cannot_break_is_not_run_and_the_base_only_once(
    builder: RepositoryBuilder,
    tmp_path: Path,
    ran: list[tuple[str, tuple[str, ...]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (builder.place / "vllm/engine.py").write_text("2")
    command = ["--cases", str(tmp_path / "cases"), "try", str(builder.place), "--jobs", "1"]
    assert cli.main(command) == 1
    related, others = ("fixed",), ("breaks", "seen", "stays", "unclear")
    assert ran == [
        ("base", related),
        ("patch", related),
        ("base", others),
        ("patch", ("breaks",)),
    ]
    output = capsys.readouterr().out
    assert "to be built first: vllm-0.8.4: downloads of at most 3.0 GiB" in output
    assert f"breaks breaks: t: {'as seen' * 99}" in output
    for verdict, case_id in (("REPRODUCED", "stays"), ("INCONCLUSIVE", "seen, unclear")):
        assert (
            f"Not run, because {verdict} at the base already ({case_id.count(',') + 1}): {case_id}"
            in output
        )
    ran.clear()
    (builder.place / "vllm/engine.py").write_text("def run(): return 3")
    assert cli.main([*command, "--format", "markdown"]) == 1
    # An unclear verdict of a test that saw nothing says more about the run than about the base.
    assert ran == [("patch", related), ("base", ("unclear",)), ("patch", ("breaks",))]
    comment = capsys.readouterr().out
    assert len(comment.splitlines()) <= 60
    assert "1 of 1 changed functions are not exercised by the 2 cases" in comment
    ran.clear()
    assert cli.main([*command, "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["not_executed"] == ["vllm.engine:run"]
    ran.clear()
    assert cli.main([*command, "--base-again", "stays"]) == 0
    assert ran == [("base", ("stays",)), ("patch", ("stays",))]


def test_the_exercise_follows_the_closest_cases(
    builder: RepositoryBuilder,
    tmp_path: Path,
    ran: list[tuple[str, tuple[str, ...]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    grade = Grade.RESULT

    def exercise(*_: object, **__: object) -> ExerciseComparison:
        ran.append(("exercise", ()))
        return ExerciseComparison((Difference(grade, "s/a/1", "text", "x", "y"),), 9)

    monkeypatch.setattr(try_, "compare_exercise", exercise)
    (builder.place / "vllm/engine.py").write_text("2")
    command = ["--cases", str(tmp_path / "cases"), "try", str(builder.place), "--jobs", "1"]
    cli.main(command)
    closest, others = ("fixed",), ("breaks", "seen", "stays", "unclear")
    assert ran[:4] == [("base", closest), ("patch", closest), ("exercise", ()), ("base", others)]
    assert "changes s/a/1: text: before x, after y" in capsys.readouterr().out
    ran.clear()
    assert cli.main([*command, "stays"]) == 0
    assert ("exercise", ()) not in ran, "who names cases asks for these alone"
    for name in ("breaks", "seen", "unclear"):
        shutil.rmtree(tmp_path / "cases" / name)
    assert cli.main(command) == 0, "another answer breaks nothing by itself"
    grade = Grade.BREAKS
    capsys.readouterr()
    assert cli.main([*command, "--format", "json"]) == 1
    (difference,) = json.loads(capsys.readouterr().out)["exercise"]["differences"]
    assert difference["grade"] == "breaks"


def test_only_the_bases_that_were_used_last_are_kept(
    builder: RepositoryBuilder, tmp_path: Path, ran: list[object]
) -> None:
    (builder.place / "vllm/engine.py").write_text("2")
    command = ["--cases", str(tmp_path / "cases"), "try", str(builder.place), "stays"]
    assert cli.main(command) == 0
    kept = tmp_path / "cache" / "try-bases"
    (own,) = kept.iterdir()
    for number in range(KEPT_BASES):
        (kept / f"later-{number}").touch()
    (kept / "first").mkdir()
    for path in (own, kept / "first"):
        os.utime(path, (1, 1))
    assert cli.main(command) == 0
    assert own.exists() and not (kept / "first").exists()
    assert len(ran) == 3


def test_git_is_asked_no_more_for_more_cases(
    builder: RepositoryBuilder, tmp_path: Path, ran: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []
    command_of = git._command

    def command_for(*arguments: str) -> list[str]:
        asked.append(arguments)
        return command_of(*arguments)

    monkeypatch.setattr(git, "_command", command_for)
    (builder.place / "vllm/engine.py").write_text("2")
    command = ["--cases", str(tmp_path / "cases"), "try", str(builder.place)]
    assert cli.main([*command, "stays"]) == 0
    first = len(asked)
    for number in range(20):
        case_named(tmp_path, f"breaks-{number}")
    monkeypatch.setattr("pytest_vllm_regress.runner.executors.run_batch", run_all)
    asked.clear()
    cli.main(command)
    assert len(asked) <= first + 1  # the commits that touched the changed files


def run_all(batch: Batch, *_: object) -> RunResult:
    return RunResult(
        tuple(TestResult(case.id, "t", GOOD, "", "sim", batch.environment) for case in batch.cases)
    )


def test_a_tree_that_changes_meanwhile_is_no_result(
    builder: RepositoryBuilder,
    tmp_path: Path,
    ran: list[object],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (builder.place / "vllm/engine.py").write_text("2")

    def run_batch(batch: Batch, *_: object) -> RunResult:
        (builder.place / "vllm/engine.py").write_text("3")
        return run_all(batch)

    monkeypatch.setattr("pytest_vllm_regress.runner.executors.run_batch", run_batch)
    source = tree(builder)
    assert cli.main(["--cases", str(tmp_path / "cases"), "try", str(builder.place)]) == 2
    assert "changed while this command was running" in capsys.readouterr().err
    with pytest.raises(UsageError, match="changed while this command was running"):
        dict(source.files())
