"""The comparison of two sides: the base is asked once, and what differs must differ each time."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.fuzz.exercise import comparison
from pytest_vllm_regress.fuzz.exercise.comparison import RUNS, ExerciseComparison, compare_exercise
from pytest_vllm_regress.fuzz.exercise.workload import stations
from pytest_vllm_regress.history.patch import PatchComparison

SIDES = cast(
    PatchComparison, SimpleNamespace(before="base", after="patch", base_environment="vllm-1.0")
)


@dataclasses.dataclass
class Stand:
    """Answers by environment, one set for each run, and the stations that were run."""

    answers: dict[str, list[dict[str, Any]]]
    ran: list[tuple[str, tuple[str, ...]]] = dataclasses.field(default_factory=list)

    def exercise(self, session: object, environment: str, names: tuple[str, ...]) -> Any:
        asked = tuple(names)
        self.ran.append((environment, asked))
        runs = self.answers[environment]
        answers = runs.pop(0) if len(runs) > 1 else runs[0]
        return SimpleNamespace(
            run=lambda: ((name, answers[name]) for name in asked if name in answers)
        )


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stand:
    stand = Stand({})

    @contextlib.contextmanager
    def session(*_: object, **__: object) -> Iterator[None]:
        yield None

    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path))
    monkeypatch.setattr(comparison, "bare_session", session)
    monkeypatch.setattr(comparison, "Exercise", stand.exercise)
    monkeypatch.setattr(comparison, "lock_id", lambda name: "lock")
    monkeypatch.setattr(comparison, "all_names", lambda: ["one", "two"])
    return stand


def compared(base_again: bool = False) -> ExerciseComparison:
    return compare_exercise(SIDES, lambda line: None, base_again=base_again)


SAME = {"one": {"a/1": {"text": "x"}}, "two": {"a/1": {"text": "y"}}}
OTHER = {**SAME, "two": {"a/1": {"text": "z"}}}


def test_the_base_is_asked_once(stand: Stand) -> None:
    stand.answers = {"base": [SAME], "patch": [SAME]}
    assert not compared().found
    assert not compared().found
    both = ("one", "two")
    assert stand.ran == [("base", both), ("patch", both), ("patch", both)]
    assert compared().compared == 2
    compared(base_again=True)
    assert stand.ran[-2:] == [("base", both), ("patch", both)]


def test_what_differs_is_asked_again_on_both_sides(stand: Stand) -> None:
    stand.answers = {"base": [SAME], "patch": [OTHER]}
    result = compared()
    assert [(one.name, one.before, one.after) for one in result.found] == [("two/a/1", "y", "z")]
    assert stand.ran[2:] == [("patch", ("two",)), ("base", ("two",))] * (RUNS - 1)
    asked = len(stand.ran)
    compared()
    assert stand.ran[asked:] == [("patch", ("one", "two")), *[("patch", ("two",))] * (RUNS - 1)]


def test_what_varies_on_either_side_is_no_difference(stand: Stand) -> None:
    stand.answers = {"base": [SAME], "patch": [*[OTHER] * (RUNS - 1), SAME]}
    result = compared()
    assert (result.found, result.unstable) == ((), 1)
    stand.answers = {"base": [OTHER], "patch": [OTHER]}
    compared(base_again=True)
    stand.answers = {"base": [SAME], "patch": [SAME]}
    result = compared()
    assert (result.found, result.unstable) == ((), 1)


def test_the_summary_counts_and_the_section_shows_the_clearest(stand: Stand) -> None:
    broken = {"one": {"a/1": {"error": ["hang", ""]}}, "two": {"a/1": {"text": "z"}}}
    stand.answers = {"base": [SAME], "patch": [broken]}
    result = compared()
    assert "2 of 2 answers differ, 1 of them with a failure (one 1, two 1)" in result.summary()
    summary, lines = result.section().parts
    assert summary == result.summary()
    assert isinstance(lines, tuple)
    assert [line.split()[0] for line in lines] == ["breaks", "changes"]
    assert [one["name"] for one in result.to_json()["differences"]] == ["one/a/1", "two/a/1"]


def test_stations_for_which_there_was_no_time_are_named_and_not_compared(stand: Stand) -> None:
    first = {"one": OTHER["one"]}
    stand.answers = {"base": [first, SAME], "patch": [OTHER, first, OTHER]}
    result = compared()
    assert (result.found, result.left_out) == ((), ("two",))
    assert result.summary().endswith("the same on both sides; out of time: two")
    result = compared()  # which goes on with the base
    assert (result.compared, result.left_out) == (1, ("two",))
    assert [one.name for one in compared().found] == ["two/a/1"]


def test_numbers_that_json_does_not_have_are_equal_and_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = {"a/1": {"sum": [float("nan"), -float("inf")]}}
    monkeypatch.setattr(comparison, "StationRun", lambda *_: SimpleNamespace(run=lambda: answer))
    station = stations()[0]
    (kept,) = comparison.Exercise(cast(Session, None), "vllm-1.0", [station.name]).run()
    assert kept == (station.name, {"a/1": {"sum": ["nan", "-inf"]}})
