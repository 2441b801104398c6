"""What a batch of cells costs beside its cells, on a cluster and on this machine."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.runner.carrier import Carrier, LocalThreads
from pytest_vllm_regress.runner.journal import Journal
from pytest_vllm_regress.runner.on_ray.carrier import RayCarrier
from pytest_vllm_regress.runner.runner import Job, Options, build_with_cache
from tests.cluster.conftest import Cluster
from tests.cluster.record import keep
from tests.conftest import MakeTarget
from tests.helpers.waiting_cases import version_case

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
AT_ONCE, BATCHES = 3, 9


@dataclasses.dataclass(frozen=True)
class Run:
    """Seconds: until the first cell began, until the last answer was there, and all cells' own."""

    first: float
    all: float
    cells: float

    @classmethod
    def of(cls, carrier: Carrier, jobs: Sequence[Job], journal: Journal) -> Run:
        asked = time.time()
        arrivals = [each for each in carrier.carry(jobs, Options(), journal) if each is not None]
        answered = time.time()
        found = {(each.environment, each.test): each for arrival in arrivals for each in arrival.run.results}.values()
        assert {each.verdict for each in found} == {Verdict.FIXED}
        assert len(found) == sum(len(job.cases) for job in jobs)
        begun = min(each.started_at for each in found)
        times = begun - asked, answered - asked, sum(each.duration_s for each in found)
        return cls(*(round(seconds, 2) for seconds in times))


def test_what_a_batch_costs_beside_its_cells(
    cluster: Cluster, make_target: MakeTarget, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """As many environments at a time here as there, on the same cores: what is more is the cluster's. Its start, with a keeper for each node, is
    once a run; and what takes a second on a machine of its own takes longer on one that does much else."""
    cases = tuple(version_case(tmp_path / "cases", f"case-{number}") for number in range(2))
    jobs = [Job(str(make_target(vllm="0.8.5")), cases, {}) for _ in range(BATCHES)]
    here = Run.of(LocalThreads(build_with_cache(print), AT_ONCE, print), jobs, Journal(tmp_path / "here", ()))
    there = Run.of(RayCarrier(cluster.address, print), jobs, Journal(tmp_path / "there", ()))
    costs = ((there.all - there.first) - (here.all - here.first)) / BATCHES
    measured = {"jobs": dataclasses.asdict(here), "on": dataclasses.asdict(there), "each": round(costs, 2)}
    keep(request.config, "batches", {"batches": BATCHES, "at_once": AT_ONCE, **measured})
