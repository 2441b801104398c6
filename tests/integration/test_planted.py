"""The benchmark of planted faults: a fault is in the copy alone and only for a while, and a run that
was interrupted goes on."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import planted_tests
from benchmarks.planted import (
    ROOT,
    Copy,
    Fault,
    Outcome,
    chosen,
    entry_name,
    functions_of,
    measure,
    outcome_of,
    outcome_of_tests,
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
        measure(faults, store, "cases", ask)
    store = Store(tmp_path / "record.jsonl", Outcome, what="faults")
    measure(faults, store, "cases", ask)
    assert asked == ["a-00", "a-01", "a-02", "a-00", "a-02", "a-03"]
    kept = [entry_name(fault.id, "cases") for fault in faults[1:]]
    assert dict(store.entries) == dict.fromkeys(kept, outcome)


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


def test_the_table_counts_what_found_each_fault_and_how_far_each_finder_came() -> None:
    faults = {name: dataclasses.replace(FAULT, id=name) for name in ("a", "b", "c", "d", "e")}
    outcomes = {
        "a cases": Outcome("case", 10.0, ("one",), 3),
        "b cases": Outcome("invariant", 30.0, ("one",), 3),
        "c cases": Outcome("none", 50.0, ("one",), 3, out_of_time=True),
        "d cases": Outcome("none", 0.0, (), 0),
        "a upstream": Outcome("upstream", 4.0, ("one",), 3),
        "c upstream": Outcome("upstream", 4.0, ("one",), 3),
        "d upstream": Outcome("none", 4.0, ("one",), 3),
    }
    lines = list(table(outcomes, faults))
    assert "| all | 5 | 1 | 1 | 0 | 2 | 3 |" in lines
    assert "| cases | 4 | 2 | 0 | 1 | 1 | 20 s |" in lines
    assert "| upstream | 3 | 2 | 1 | 0 | 0 | 4 s |" in lines


TESTS = """\
import pytest, vllm.a

def test_calls_it():
    assert vllm.a.limit(3)

def test_calls_it_and_does_not_notice():
    assert vllm.a.limit(4)

def test_does_not_call_it():
    pass

def test_fails_always():
    assert not vllm.a.limit(4)
"""
CONFTEST = """\
from pytest_vllm_regress.target_site.vllm_regress_target import reached
reached.install()
"""


@pytest.mark.parametrize(
    ("replace", "failing", "noticing"),
    [
        ("n > 3", "tests/test_a.py::test_calls_it", 2),
        ("n >= 3.0", "", 2),
        ("(__import__('os')._exit(3) if n == 3 else True)", "tests/test_a.py::test_calls_it", 2),
    ],
)
def test_tests_that_pass_and_execute_the_function_find_a_fault(
    tmp_path: Path, replace: str, failing: str, noticing: int
) -> None:
    fault = dataclasses.replace(FAULT, replace=replace)
    (tmp_path / "vllm").mkdir()
    module, base = tmp_path / "vllm" / "a.py", tmp_path / "base.py"
    base.write_text(STOCK)
    os.link(base, module)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    functions = functions_of(fault, STOCK)
    entry = {
        "id": fault.id,
        "path": str(module),
        "base": str(base),
        "faulty": fault.planted_in(STOCK),
        "functions": functions.names,
        "files": ["tests/test_a.py"],
    }
    found = tmp_path / "found.jsonl"
    plan = {"sound": str(tmp_path / "sound.jsonl"), "found": str(found), "limit_s": 20.0}
    (tmp_path / planted_tests.PLAN).write_text(json.dumps({**plan, "faults": [entry]}))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "benchmarks.planted_tests"]
    paths = os.pathsep.join((str(tmp_path), str(ROOT)))
    with functions.recorded(tmp_path / "executed"):
        subprocess.run(
            [*command, "-p", "no:vllm_regress", f"--rootdir={tmp_path}", "tests"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": paths},
            check=True,
            timeout=120,
        )
    outcome = outcome_of_tests(list(map(json.loads, found.read_text().splitlines())))
    assert (outcome.test, outcome.executing) == (failing, noticing)
    assert (outcome.found_by, outcome.without) == (
        ("upstream", "passed") if failing else ("none", "")
    )
    assert module.samefile(base)


def test_code_that_differs_in_its_position_only_is_not_changed() -> None:
    with pytest.raises(ValueError, match="no function to change"):
        planted_tests.change_functions(__file__, "def f(): pass\n", "\n\ndef f(): pass\n")
