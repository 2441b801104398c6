"""Requests and outcomes as JSON: what travels is whole, bounded and checked; what an environment's name means travels with it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from pytest_vllm_regress.cases import proof
from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.environments.names import resolve
from pytest_vllm_regress.environments.sidecars import sidecar_locks
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.runner import packing
from pytest_vllm_regress.runner import runner as runs
from pytest_vllm_regress.runner.carrier import Arrival
from pytest_vllm_regress.runner.cell import MAX_LOG, CellOutcome, CellRequest, Needs, State
from pytest_vllm_regress.runner.journal import Journal
from pytest_vllm_regress.runner.matrix import Matrix
from tests.helpers.cases import CaseFile
from tests.helpers.waiting_cases import version_case

FIXED = TestResult("one", "one/test_one.py::test", Verdict.FIXED, "passed", "sim", "a", node={"node": "n1"})


def test_what_travels_arrives() -> None:
    request = CellRequest("vllm-0.8.4", "x", {"l.txt": "y"}, ("one",), {"one/case.toml": "z"}, "sim", ("-k", "a"))
    assert CellRequest.from_text(request.to_text()) == request
    outcome = CellOutcome(State.LOST, RunResult((FIXED,)), False, "full", {"node": "n1"}, "said")
    assert CellOutcome.from_text(outcome.to_text()) == outcome
    assert len(CellOutcome.from_text(CellOutcome(log="x" * (MAX_LOG + 1)).to_text()).log) == MAX_LOG


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "schema = 2"),
        ({"tool_version": "0"}, "install the same one on every machine"),
        ({"files": {"../x": ""}}, "a path that stays below its folder"),
        ({"files": {"/etc/x": ""}}, "a path that stays below its folder"),
        ({"locks": {"a/../../x": ""}}, "a path that stays below its folder"),
        ({"device": "tpu"}, "allowed"),
        ({"more": 1}, "unknown key"),
    ],
)
def test_what_no_version_of_ours_wrote_is_refused(change: dict[str, object], said: str) -> None:
    document = json.loads(CellRequest("a").to_text())
    with pytest.raises(UsageError, match=said):
        CellRequest.from_text(json.dumps(document | change))
    with pytest.raises(UsageError, match="not valid JSON"):
        CellOutcome.from_text("{")


def test_an_environments_name_means_the_same_where_it_was_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = version_case(tmp_path / "cases", "one")
    (tmp_path / "cases" / "conftest.py").write_text("")
    (case.directory / proof.FILE).write_text("{}")
    for name in ("vllm-0.8.4", "vllm-0.9.1+lm-format-enforcer==0.10.5"):
        request = packing.pack(runs.Job(name, (case,), {}), runs.Options("gpu", None, ("-x",)), gpus=2)
        here = resolve(name)
        folder = tmp_path / f"unpacked-{request.environment}"
        folder.mkdir()
        with monkeypatch.context() as elsewhere:
            elsewhere.chdir(folder)
            job, options = packing.unpack(CellRequest.from_text(request.to_text()), folder)
            found = resolve(job.environment)
            there = {lock.name: lock.read_text() for lock in sidecar_locks()}
        assert dataclasses.replace(found, lock=here.lock, lock_local=here.lock_local) == here
        assert (found.lock and found.lock.read_text()) == (here.lock and here.lock.read_text())
        assert there
        assert there == {lock.name: lock.read_text() for lock in sidecar_locks()}
        assert proof.fingerprint(job.cases[0]) == proof.fingerprint(case)
        assert (options.device, options.pytest_args, request.needs) == ("gpu", ("-x",), Needs(gpus=2))
        assert (folder / "cases" / "conftest.py").exists()
        assert not (folder / "cases" / "one" / proof.FILE).exists()


def test_what_cannot_travel_is_refused(tmp_path: Path) -> None:
    case = CaseFile("one").write(tmp_path / "cases")
    (case.directory / "picture.png").write_bytes(b"\x89\xff")
    with pytest.raises(UsageError, match=r"picture\.png: not UTF-8"):
        packing.pack(runs.Job("vllm-0.8.4", (case,), {}), runs.Options())
    with pytest.raises(UsageError, match="no files of one"):
        packing.unpack(
            CellRequest("a", cases=("one",), files={"two/case.toml": CaseFile("two").text()}), tmp_path / "new"
        )


class FakeCarrier:
    """Brings the arrivals it was given."""

    def __init__(self, *arrivals: Arrival | type[BaseException] | None) -> None:
        self.arrivals = arrivals
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    def carry(
        self, jobs: Sequence[runs.Job], options: runs.Options, journal: Journal
    ) -> Generator[Arrival | None, None, None]:
        self.asked += [(job.environment, tuple(case.id for case in job.cases)) for job in jobs]
        for each in self.arrivals:
            if isinstance(each, type):
                raise each
            yield each


def test_a_matrix_keeps_what_any_carrier_finished_and_only_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_vllm_regress.cases.proof.lock_of", lambda environment: environment)
    journal = Journal(tmp_path / "journal", ["key"])
    cases = tuple(version_case(tmp_path / "cases", name) for name in ("one", "two", "three"))
    job = runs.Job("a", cases, {})
    lost = RunResult(runs.inconclusive(cases[1:2], job, "the machine failed", runs.Options()))
    said: list[str] = []

    def run(carrier: FakeCarrier) -> runs.Outcome:
        return Matrix(carrier, runs.Options(), journal, said.append).run([job])

    outcome = run(
        FakeCarrier(
            Arrival(job, RunResult((FIXED,)), last=False, node={"node": "n1"}),
            None,
            Arrival(job, lost, State.LOST, last=False),
            KeyboardInterrupt,
        )
    )
    assert outcome.interrupted
    assert [each.case_id for each in outcome.run.results] == ["one"]
    assert said[0].startswith("[1/3] a on n1: one FIXED; about ")
    said.clear()
    again = FakeCarrier(Arrival(job, lost, State.LOST, last=False), Arrival(job, lost, State.LOST))
    outcome = run(again)
    assert again.asked == [("a", ("two", "three"))]
    assert {each.case_id: each.verdict for each in outcome.run.results} == {
        "one": Verdict.FIXED,
        "two": Verdict.INCONCLUSIVE,
    }
    assert outcome.exit_code == 1
    assert [line.partition("]")[0] for line in said[1:]] == ["[1/2", "[1/2"]  # a cell that is told again counts once
