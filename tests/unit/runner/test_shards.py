"""Shards: every cell in exactly one part, parts alike in length, the same division everywhere."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases.model import Case, find_cases
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.runner import shards
from pytest_vllm_regress.runner.runner import Job, plan
from pytest_vllm_regress.runner.shards import ENVIRONMENT_S, Shard, System
from tests.helpers import ROOT

CASES = find_cases(ROOT / "cases")
durations = st.dictionaries(
    st.tuples(st.sampled_from([c.id for c in CASES]), st.sampled_from("abcd")), st.floats(0, 900)
)


def jobs() -> list[Job]:
    return [Job(name, CASES, {}) for name in "abcd"]


def cells(parts: tuple[tuple[Job, ...], ...]) -> Counter[tuple[str, str]]:
    return Counter((job.environment, case.id) for part in parts for job in part for case in job.cases)


@given(durations, st.integers(1, 40))
def test_every_cell_is_in_one_part(took: dict[tuple[str, str], float], count: int) -> None:
    def seconds(case: Case, environment: str) -> float:
        return took.get((case.id, environment), 30.0)

    parts = shards.divide(jobs(), count, seconds)
    assert len(parts) == count
    assert cells(parts) == Counter((name, case.id) for name in "abcd" for case in CASES)
    for part in parts:
        assert len({job.environment for job in part}) == len(part)
    lengths = [
        sum(ENVIRONMENT_S + sum(seconds(c, job.environment) for c in job.cases) for job in part) for part in parts
    ]
    longest_piece = ENVIRONMENT_S + max(seconds(case, name) for case in CASES for name in "abcd")
    fair = sum(lengths) / count
    assert max(lengths) <= 2 * fair + longest_piece  # what greedy division promises, and no more


def test_an_environment_is_divided_only_where_it_is_longer_than_a_part() -> None:
    parts = shards.divide(jobs(), 4, lambda case, environment: 30.0)
    assert [[job.environment for job in part] for part in parts] == [["a"], ["b"], ["c"], ["d"]]
    longer = shards.divide(jobs(), 3, lambda case, environment: 3000.0 if environment == "a" else 10.0)
    assert sum("a" in {job.environment for job in part} for part in longer) == 3


def test_recorded_seconds_come_from_the_proof() -> None:
    case = next(case for case in CASES if case.id == "vllm-17173")
    assert shards.recorded(case, "vllm-0.8.4") > 0
    assert shards.recorded(case, "nowhere") > 0


@pytest.mark.parametrize(
    ("took", "workers"),
    [((400.0,), ["3"]), ((200.0,), [None]), ((400.0, 300.0), ["2", None]), ((400.0, 400.0), [None, None])],
)
def test_what_is_longer_than_all_others_gets_several_workers(
    took: tuple[float, ...], workers: list[str | None]
) -> None:
    given = [Job(str(number), CASES[:1], {}) for number in range(len(took))]
    assert [job.workers for job in shards.with_workers(given, lambda case, name: took[int(name)])] == workers


@pytest.mark.parametrize("text", ["0/2", "3/2", "1/0", "2", "a/b", "1/257", "-1/2", "1/2/3", "²/3"])
def test_what_is_no_shard(text: str) -> None:
    with pytest.raises(UsageError, match="allowed are 1/N to N/N"):
        Shard.parse(text)


@pytest.mark.parametrize("system", list(System))
def test_job_matrix(system: System, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        cli.main(["matrix", "vllm-17173", "lmfe-124", "--plan", system, "--shards", "3", "--", "-k", "two words"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    commands = [each["command"] for each in found.get("include", found.get("steps"))]
    assert len(commands) == 3
    for number, command in enumerate(commands, 1):
        assert command.startswith("vllm-regress matrix vllm-17173 lmfe-124 --shard ")
        assert command.endswith(f"--shard {number}/3 --results results/shard-{number}.json -- -k 'two words'")


def test_more_parts_than_cells_leave_parts_empty() -> None:
    job = plan(CASES[:1])[:1]
    assert [len(part) for part in shards.divide(job, 3)] == [1, 0, 0]
    assert len(shards.job_matrix(System.GITHUB, job, 3, ["x"])["include"]) == 1
    assert shards.take(job, "2/3") == ()


def test_a_shard_without_work_says_so_and_writes_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    written = tmp_path / "out.json"
    arguments = ["vllm-17173", "--env", "vllm-0.8.4", "--shard", "2/2", "--results", str(written)]
    assert cli.main(["matrix", *arguments]) == 0
    assert "nothing" in capsys.readouterr().out
    assert json.loads(written.read_text())["results"] == []
