"""Shards: every case in exactly one shard, shards of similar length, and the same division on every
machine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.runner import shards
from pytest_vllm_regress.runner.batch import HANGING, Batch, RunOptions
from pytest_vllm_regress.runner.plan import (
    ENVIRONMENT_S,
    plan_batches,
    recorded_seconds,
    recorded_tests,
    set_hangs_apart,
    share_workers,
)
from pytest_vllm_regress.runner.run import LocalMachine, local_request
from pytest_vllm_regress.runner.shards import CiSystem, Shard
from tests.helpers.cases import project_cases

CASES = project_cases()
HANG, OTHER = (
    next(case for case in CASES if case.id == case_id) for case_id in ("vllm-16140", "vllm-17173")
)
SOME = CASES[::5]
durations = st.dictionaries(
    st.tuples(st.sampled_from([c.id for c in SOME]), st.sampled_from("abcd")), st.floats(0, 900)
)


def batches() -> list[Batch]:
    return [Batch(name, SOME, {}) for name in "abcd"]


def cells(parts: tuple[tuple[Batch, ...], ...]) -> Counter[tuple[str, str]]:
    return Counter(
        (batch.environment, case.id) for part in parts for batch in part for case in batch.cases
    )


@settings(max_examples=30)  # each divides some 150 pairs
@given(durations, st.integers(1, 40))
def test_every_case_is_in_one_shard(durations_s: dict[tuple[str, str], float], count: int) -> None:
    def seconds(case: Case, environment: str) -> float:
        return durations_s.get((case.id, environment), 30.0)

    parts = shards.divide_into_shards(batches(), count, seconds)
    assert len(parts) == count
    assert cells(parts) == Counter((name, case.id) for name in "abcd" for case in SOME)
    for part in parts:
        assert len({batch.environment for batch in part}) == len(part)
    lengths = [
        sum(
            ENVIRONMENT_S + sum(seconds(c, batch.environment) for c in batch.cases)
            for batch in part
        )
        for part in parts
    ]
    longest_part = ENVIRONMENT_S + max(seconds(case, name) for case in SOME for name in "abcd")
    fair = sum(lengths) / count
    assert max(lengths) <= 2 * fair + longest_part  # the bound of greedy division


def test_an_environment_is_split_only_if_it_is_longer_than_a_shard() -> None:
    parts = shards.divide_into_shards(batches(), 4, lambda case, environment: 30.0)
    assert [[batch.environment for batch in part] for part in parts] == [["a"], ["b"], ["c"], ["d"]]
    longer = shards.divide_into_shards(
        batches(), 3, lambda case, environment: 3000.0 if environment == "a" else 10.0
    )
    assert sum("a" in {batch.environment for batch in part} for part in longer) == 3


def test_recorded_seconds_come_from_the_proof() -> None:
    case = next(case for case in CASES if case.id == "vllm-17173")
    assert recorded_seconds(case, "vllm-0.8.4") > 0
    assert recorded_seconds(case, "nowhere") > 0


@pytest.mark.parametrize(("tests", "most", "workers"), [(9, 6, "6"), (3, 6, "3")])
def test_the_tests_of_a_documented_hang_run_side_by_side(
    tests: int, most: int, workers: str
) -> None:
    both = Batch("vllm-0.8.4", (HANG, OTHER), {HANG.id: "affected", OTHER.id: "affected"})
    fixed = Batch("vllm-0.8.5", (HANG,), {HANG.id: "fixed"})
    hanging, rest = set_hangs_apart([both, fixed], most, lambda case, name: tests)
    assert [(batch.cases, batch.part, batch.workers) for batch in hanging] == [
        ((HANG,), HANGING, workers)
    ]
    assert rest == [both.only({OTHER.id}), fixed]


@pytest.mark.parametrize(("tests", "most"), [(1, 6), (9, 1)])
def test_nothing_is_set_apart_for_one_test_or_without_room(tests: int, most: int) -> None:
    batch = Batch("vllm-0.8.4", (HANG, OTHER), {HANG.id: "affected"})
    assert set_hangs_apart([batch], most, lambda case, name: tests) == ([], [batch])


@pytest.mark.parametrize(
    ("case_s", "environments", "most", "workers"),
    [
        (30.0, "a", 3, "3"),
        (30.0, "ab", 5, "2"),
        (30.0, "ab", 3, None),  # one for each is what a batch has anyway
        (0.4, "a", 3, "2"),  # a third would have less to do than its start takes
        (0.1, "a", 3, None),
    ],
)
def test_few_batches_share_workers_as_far_as_they_are_worth_a_start(
    case_s: float, environments: str, most: int, workers: str | None
) -> None:
    cases = CASES[:190]
    batches = [Batch(name, cases, {}) for name in environments]
    shared = share_workers(batches, most, lambda case, name: case_s)
    assert [batch.workers for batch in shared] == [workers] * len(environments)
    assert [batch.cases for batch in shared] == [cases] * len(environments)


@pytest.mark.parametrize(
    ("arguments", "spare", "workers"),
    [
        ((), lambda running: False, "3"),  # tests wait for two fifths of their time
        ((), None, "2"),  # the user said how many
        (("--pdb",), None, None),
    ],
)
def test_one_environment_gets_workers_in_place_of_parts(
    arguments: tuple[str, ...], spare: Callable[[int], bool] | None, workers: str | None
) -> None:
    machine = LocalMachine(lambda name: None, 2, spare, workers=6)
    batch = Batch("vllm-0.33.0", CASES, {})
    request = local_request([batch], machine, RunOptions(pytest_args=arguments), print)
    assert {batch.workers for batch in request.batches} == {workers}
    assert (len(request.batches) == 1) == bool(workers)


@pytest.mark.parametrize(("arguments", "workers"), [((), "6"), (("--pdb",), None)])
def test_a_debugger_gets_no_workers(arguments: tuple[str, ...], workers: str | None) -> None:
    machine = LocalMachine(lambda name: None, 2, workers=6)
    batch = Batch("vllm-0.8.4", (HANG,), {HANG.id: "affected"})
    request = local_request([batch], machine, RunOptions(pytest_args=arguments), print)
    assert [batch.workers for batch in request.batches] == [workers]


def test_how_many_tests_a_case_has_comes_from_the_proof() -> None:
    assert recorded_tests(HANG, "vllm-0.8.4") == recorded_tests(HANG, "nowhere") == 9


@pytest.mark.parametrize("text", ["0/2", "3/2", "1/0", "2", "a/b", "1/257", "-1/2", "1/2/3", "²/3"])
def test_malformed_shards_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="allowed are 1/N to N/N"):
        Shard.parse(text)


@pytest.mark.parametrize("system", list(CiSystem))
def test_the_ci_job_matrix_has_a_job_for_each_shard(
    system: CiSystem, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        cli.main(
            [
                "matrix",
                "vllm-17173",
                "lmfe-124",
                "--dry-run",
                "--format",
                system,
                "--shard",
                "3",
                "--",
                "-k",
                "two words",
            ]
        )
        == 0
    )
    matrix = json.loads(capsys.readouterr().out)
    if system is CiSystem.GITLAB:
        assert matrix.pop("include") == [{"local": shards.GITLAB_SETTINGS}]
        commands = [command for job in matrix.values() for command in job["script"]]
    else:
        commands = [job["command"] for job in matrix.get("include", matrix.get("steps"))]
    assert len(commands) == 3
    for number, command in enumerate(commands, 1):
        assert command.startswith("vllm-regress matrix vllm-17173 lmfe-124 --shard ")
        assert command.endswith(
            f"--shard {number}/3 --out results/shard-{number}.json -- -k 'two words'"
        )


PLAN = ("--dry-run", "--format", "github")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shard", "3"], "allowed are 1/N to N/N"),
        (["--format", "github"], "runs nothing: give --dry-run with it"),
        (
            [*PLAN, "--out", "a", "--jobs", "2"],
            "does not pass on --out, --jobs: leave that out here",
        ),
        ([*PLAN, "--shard", "1/2"], "give only their number, for example 8"),
        ([*PLAN, "--env", "vllm-0.8.44x"], "unknown environment"),
    ],
)
def test_options_that_do_not_belong_to_a_plan_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert cli.main(["matrix", "vllm-17173", *arguments]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_surplus_shards_are_empty() -> None:
    one_batch = plan_batches(CASES[:1])[:1]
    assert [len(part) for part in shards.divide_into_shards(one_batch, 3)] == [1, 0, 0]
    assert len(shards.ci_job_matrix(CiSystem.GITHUB, one_batch, 3, ["x"])["include"]) == 1
    assert shards.take_shard(one_batch, "2/3") == ()


def test_an_empty_shard_says_so_and_writes_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    written = tmp_path / "out.json"
    arguments = ["vllm-17173", "--env", "vllm-0.8.4", "--shard", "2/2", "--out", str(written)]
    assert cli.main(["matrix", *arguments]) == 0
    assert "nothing" in capsys.readouterr().out
    assert json.loads(written.read_text())["results"] == []
