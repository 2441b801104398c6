"""What a patch does to cases: compared with what, in which order, cell by cell, and the command. Runs are a stand-in's."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.bisection.patch import Effect, base_of, changed_files, effects, nearest_first
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.environments import bases
from pytest_vllm_regress.environments.sources import Source, find, parse_name
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.runner import runner as runs
from tests.helpers.repositories import Maker
from tests.unit.bisection.test_bisect import CASE


@pytest.fixture
def made(tmp_path: Path) -> Maker:
    """main with a fix of pull request 7, and a branch of one commit."""
    made = Maker(tmp_path / "tree")
    made.commit(
        "first (#1)", {"vllm/__init__.py": "", "vllm/engine.py": "1", "vllm/grammar.py": "1", "vllm/core.py": "1"}
    )
    made.commit("mend the grammar (#7)", {"vllm/grammar.py": "2"})
    made.commit("upstream goes on (#8)", {"vllm/core.py": "2"})
    return made


@pytest.fixture(autouse=True)
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("VLLM_REGRESS_SOURCE_VLLM", "")
    monkeypatch.setattr(bases, "newest_release", lambda package, day: "0.8.4")
    monkeypatch.setattr(bases, "release_date", lambda package, version: datetime.date(2025, 2, 1))


def case_named(root: Path, name: str, fixed_by: str = "", test: str = "") -> Case:
    keys = f'fixed-by = ["https://github.com/vllm-project/vllm/pull/{fixed_by}"]' if fixed_by else ""
    return dataclasses.replace(CASE, id=name, keys=keys).write(root / "cases", {f"test_{name}.py": test})


def tree(made: Maker) -> Source:
    named = parse_name(f"vllm@{made.place}")
    assert named is not None
    return find(named)


def test_a_tree_is_compared_with_where_its_branch_left_upstream(made: Maker) -> None:
    with pytest.raises(UsageError, match="there is no patch to try"):
        base_of(tree(made), None)
    (made.place / "vllm/engine.py").write_text("2")
    assert base_of(tree(made), None).id == made.git("rev-parse", "HEAD")
    made.git("checkout", "--quiet", "-b", "mine", "main~1")
    made.commit("my patch", {"vllm/engine.py": "3"})
    (made.place / "vllm/new.py").write_text("")
    base = base_of(tree(made), None)
    assert base.id == made.git("rev-parse", "main~1")
    assert changed_files(tree(made), base) == {"vllm/engine.py", "vllm/new.py"}
    assert changed_files(tree(made), base_of(tree(made), "main")) == {"vllm/engine.py", "vllm/new.py", "vllm/core.py"}


def test_cases_that_the_changed_modules_concern_come_first(made: Maker, tmp_path: Path) -> None:
    cases = [
        case_named(tmp_path, "a-far"),
        case_named(tmp_path, "b-named", test="from vllm.grammar import x\n"),
        case_named(tmp_path, "c-fixed-there", fixed_by="7"),
        case_named(tmp_path, "d-fixed-elsewhere", fixed_by="8"),
    ]
    found = nearest_first(cases, frozenset({"vllm/grammar.py"}), tree(made).repository)
    assert [case.id for case in found] == ["c-fixed-there", "b-named", "a-far", "d-fixed-elsewhere"]


BAD, GOOD, OTHER, NONE = Verdict.REPRODUCED, Verdict.FIXED, Verdict.INCONCLUSIVE, Verdict.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("before", "after", "effect", "tests"),
    [
        ((BAD, GOOD), (BAD, GOOD), Effect.LEFT, ()),
        ((BAD, GOOD), (GOOD, GOOD), Effect.MENDED, ("t0",)),
        ((BAD, GOOD), (GOOD, BAD), Effect.BROKEN, ("t1",)),
        ((GOOD, GOOD), (GOOD, OTHER), Effect.BROKEN, ("t1",)),
        ((BAD, BAD), (OTHER, BAD), Effect.UNCLEAR, ("t0",)),
        ((OTHER,), (GOOD,), Effect.UNCLEAR, ("t0",)),
        ((NONE, GOOD), (NONE, GOOD), Effect.LEFT, ()),
        ((GOOD,), (), Effect.BROKEN, ("t0",)),
        ((), (), Effect.UNCLEAR, ()),
    ],
)
def test_effects(
    tmp_path: Path, before: Sequence[Verdict], after: Sequence[Verdict], effect: Effect, tests: tuple[str, ...]
) -> None:
    case = case_named(tmp_path, "demo")
    sides = (
        [TestResult("demo", f"t{i}", v, "why", "sim", "e") for i, v in enumerate(side)] for side in (before, after)
    )
    (found,) = effects([case], *sides)
    assert (found.effect, found.tests) == (effect, tests)


def test_the_command(
    made: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case_named(tmp_path, "breaks")
    case_named(tmp_path, "stays")
    ran: list[str] = []

    def run_job(job: runs.Job, *_: object) -> RunResult:
        ran.append(job.environment)
        with_patch = job.environment.endswith(str(made.place))
        name = job.environment if with_patch else job.environment[: len("vllm-0.8.4+vllm@") + 10]
        seen = {"breaks": BAD if with_patch else GOOD, "stays": BAD}
        return RunResult(tuple(TestResult(case.id, "t", seen[case.id], "as seen", "sim", name) for case in job.cases))

    monkeypatch.setattr(runs, "run_job", run_job)
    monkeypatch.setattr(runs, "build_with_cache", lambda say: lambda name: None)
    command = ["--cases", str(tmp_path / "cases"), "try", str(made.place)]
    assert cli.main(command) == 2
    assert "there is no patch to try" in capsys.readouterr().err
    (made.place / "docs.md").write_text("no code")
    assert cli.main([*command, "--against", "HEAD"]) == 2
    assert "nothing to try" in capsys.readouterr().err
    (made.place / "vllm/engine.py").write_text("2")
    assert cli.main([*command, "stays"]) == 0
    assert cli.main(command) == 1
    said = capsys.readouterr().out
    assert "breaks breaks: t: as seen" in said
    head = made.git("rev-parse", "HEAD")
    assert set(ran) == {f"vllm-0.8.4+vllm@{head}", f"vllm-0.8.4+vllm@{made.place}"}
    assert len(ran) == 4
    assert cli.main(["--cases", str(tmp_path / "cases"), "try", str(tmp_path)]) == 2
    assert "not a git repository" in capsys.readouterr().err
