"""A bisection whose candidates are run on the cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.cli.context import cluster as connection
from pytest_vllm_regress.history.algorithm import CandidateState
from pytest_vllm_regress.history.candidates import (
    BisectPlan,
    CandidateRunner,
    CandidateSearch,
    open_results,
)
from pytest_vllm_regress.runner.batch import RunOptions
from pytest_vllm_regress.runner.progress import OutputInOrder
from pytest_vllm_regress.runner.ray_executor import RayExecutor
from pytest_vllm_regress.runner.run import BatchRunner
from tests.cluster.conftest import Cluster
from tests.cluster.matrices import LEFT_S, environments
from tests.conftest import MakeTarget
from tests.helpers.waiting_cases import version_case

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_the_release_that_fixes_it_is_found(
    cluster: Cluster, make_target: MakeTarget, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = version_case(tmp_path / "cases", "one")
    targets = tuple(environments(make_target, 3, 4))
    plan = BisectPlan(case, tuple("abcdefg"), targets)
    lines: list[str] = []
    log = open_results(["one"], tmp_path / "results.jsonl")
    with connection(cluster.address):
        executor = RayExecutor(cluster.address, lines.append)
        runner = BatchRunner(executor, RunOptions(), lambda: OutputInOrder(lines.append))
        search = CandidateSearch(plan, log, CandidateRunner(runner.run, None, lines.append))
        search.run()
    known = search.known()
    assert {plan.candidates[index]: state for index, state in known.items() if index in (2, 3)} == {
        "c": CandidateState.BAD,
        "d": CandidateState.GOOD,
    }
    assert len(known) <= 5
    assert "documented failures" in capsys.readouterr().out  # what pytest wrote, from the node
    cluster.wait_until_clean(LEFT_S)
