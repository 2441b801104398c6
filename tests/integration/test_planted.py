"""The benchmark of planted faults: a fault is in the copy alone and only for a while, and a run that
was interrupted goes on."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.planted import (
    Copy,
    Fault,
    Outcome,
    chosen,
    functions_of,
    measure,
    outcome_of,
    read_faults,
    table,
)
from pytest_vllm_regress.cases.results import TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.util.store import Store

STOCK = "def limit(n):\n    return n >= 3\n"
FAULT = Fault("a-01", "a", "vllm/a.py", "n >= 3", "n > 3", "one more", "hang", "three")
SITE = "lib/python3.11/site-packages"


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """A copy of an environment with one file."""
    for name in ("base", "copy"):
        (tmp_path / name / SITE / "vllm").mkdir(parents=True)
    (tmp_path / "base" / SITE / "vllm" / "a.py").write_text(STOCK)
    made = Copy(tmp_path / "base" / "bin" / "python", tmp_path / "copy")
    made.restore(["vllm/a.py"])
    return made


def test_a_fault_is_in_the_copy_alone_and_only_meanwhile(copy: Copy, tmp_path: Path) -> None:
    base, planted = (tmp_path / name / SITE / "vllm" / "a.py" for name in ("base", "copy"))
    with copy.planted(FAULT):
        assert planted.read_text() == STOCK.replace(">=", ">")
        assert base.read_text() == STOCK
    assert planted.samefile(base)


def test_what_a_killed_run_has_planted_is_taken_back(copy: Copy, tmp_path: Path) -> None:
    planted = tmp_path / "copy" / SITE / "vllm" / "a.py"
    planted.unlink()
    planted.write_text("a fault")
    copy.restore([FAULT.path])
    assert planted.read_text() == STOCK == copy.content(FAULT.path)


@pytest.mark.parametrize("find", ["n >= 4", "n"])
def test_a_fault_that_does_not_fit_exactly_once_is_an_error(copy: Copy, find: str) -> None:
    wrong = dataclasses.replace(FAULT, find=find)
    with pytest.raises(UsageError, match=r"a-01: .* times in vllm/a.py"), copy.planted(wrong):
        pass


def test_the_functions_that_a_fault_changes_choose_the_cases(copy: Copy) -> None:
    assert functions_of(FAULT, copy.content(FAULT.path)).names == ("vllm.a:limit",)


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    faults = [dataclasses.replace(FAULT, id=f"a-0{number}") for number in range(4)]
    outcome, asked = Outcome("none", 1.0, ("one",), 2), list[str]()

    def ask(fault: Fault) -> Outcome | None:
        asked.append(fault.id)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return None if fault.id == "a-00" else outcome

    store = Store(tmp_path / "record.jsonl", Outcome, what="faults")
    with pytest.raises(KeyboardInterrupt):
        measure(faults, store, ask)
    store = Store(tmp_path / "record.jsonl", Outcome, what="faults")
    measure(faults, store, ask)
    assert asked == ["a-00", "a-01", "a-02", "a-00", "a-02", "a-03"]
    assert dict(store.entries) == dict.fromkeys(("a-01", "a-02", "a-03"), outcome)


def _result(verdict: Verdict, ended_at: float, case_id: str = "one", **more: Any) -> TestResult:
    return TestResult(case_id, "t", verdict, "why", "sim", "e", started_at=ended_at, **more)


@pytest.mark.parametrize(
    ("verdict", "held", "found_by"),
    [
        (Verdict.REPRODUCED, (), "case"),
        (Verdict.INCONCLUSIVE, (), "case"),
        (Verdict.INCONCLUSIVE, ("scheduler.requests",), "invariant"),
        (Verdict.NOT_APPLICABLE, (), "none"),
    ],
)
def test_the_first_unexpected_result_says_what_found_a_fault(
    verdict: Verdict, held: tuple[str, ...], found_by: str
) -> None:
    results = [
        _result(Verdict.FIXED, 110.0),
        _result(verdict, 120.0, "two", held=held),
    ]
    outcome = outcome_of(results, 100.0, 5, False)
    assert (outcome.found_by, outcome.seconds, outcome.executing) == (found_by, 20.0, 5)
    assert outcome.ran == ("one", "two")
    assert (outcome.case, outcome.containers) == ("two" * (found_by != "none"), held)


def test_faults_come_from_each_area_in_turn() -> None:
    faults = read_faults()
    areas = [fault.area for fault in faults.values()]
    assert (len(faults), len({*areas})) == (60, len({*areas[:9]}))
    assert all(fault.find != fault.replace for fault in faults.values())
    assert [fault.id for fault in chosen(faults, ["kv-01"])] == ["kv-01"]
    with pytest.raises(UsageError, match="no such fault: kv-99"):
        chosen(faults, ["kv-99"])


def test_the_environment_is_not_written_through_a_link(copy: Copy, tmp_path: Path) -> None:
    planted = tmp_path / "copy" / SITE / "vllm" / "a.py"
    assert os.stat(planted).st_nlink == 2
    with copy.planted(FAULT):
        assert os.stat(planted).st_nlink == 1


def test_the_table_counts_what_found_each_fault() -> None:
    faults = {name: dataclasses.replace(FAULT, id=name) for name in ("a", "b", "c", "d", "e")}
    outcomes = {
        "a": Outcome("case", 10.0, ("one",), 3),
        "b": Outcome("invariant", 30.0, ("one",), 3),
        "c": Outcome("none", 50.0, ("one",), 3, out_of_time=True),
        "d": Outcome("none", 0.0, (), 0),
    }
    *_, row, _, times = table(outcomes, faults)
    assert row == "| all | 5 | 4 | 1 | 1 | 0 | 1 | 1 |"
    assert times == "First answer: median 20 s, 10 to 30 s."
