"""A bisection whose candidates are run on the cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.bisection.algorithm import State
from pytest_vllm_regress.bisection.search import Notes, Plan, Search
from pytest_vllm_regress.cli.context import cluster as connection
from pytest_vllm_regress.runner.matrix import Carried
from pytest_vllm_regress.runner.on_ray.carrier import RayCarrier
from pytest_vllm_regress.runner.runner import Options
from tests.cluster.conftest import Cluster
from tests.cluster.matrices import LEFT_S, environments
from tests.conftest import MakeTarget
from tests.helpers.waiting_cases import version_case

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_the_release_that_mends_it_is_found(
    cluster: Cluster, make_target: MakeTarget, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = version_case(tmp_path / "cases", "one")
    targets = tuple(environments(make_target, 3, 4))
    plan = Plan(case, tuple("abcdefg"), targets)
    said: list[str] = []
    notes = Notes(tmp_path / "notes.json", ["one"])
    with connection(cluster.address):
        runner = Carried(RayCarrier(cluster.address, said.append), Options(), said.append)
        search = Search(plan, notes, runner, None, said.append)
        search.run()
    told = search.known()
    assert {plan.candidates[index]: state for index, state in told.items() if index in (2, 3)} == {
        "c": State.BAD,
        "d": State.GOOD,
    }
    assert len(told) <= 5
    assert "documented failures" in capsys.readouterr().out  # what pytest wrote, from the node
    cluster.wait_until_clean(LEFT_S)
