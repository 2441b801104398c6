"""The overhead of a batch in addition to its cases, on a cluster and on this machine."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.runner.batch import Batch, BatchFiles, Executor, RunOptions
from pytest_vllm_regress.runner.executors import ThreadsExecutor, build_with_cache
from pytest_vllm_regress.runner.ray_executor import RayExecutor
from tests.cluster.conftest import Cluster
from tests.cluster.record import keep
from tests.conftest import MakeTarget
from tests.helpers.waiting_cases import version_case

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
AT_ONCE, BATCHES = 3, 9


@dataclasses.dataclass(frozen=True)
class Run:
    """Seconds until the first case began, until the last result arrived, and spent in the cases
    themselves."""

    first: float
    all: float
    cells: float

    @classmethod
    def of(cls, executor: Executor, batches: Sequence[Batch], files: BatchFiles) -> Run:
        requested = time.time()
        updates = [
            update
            for update in executor.execute(batches, RunOptions(), files)
            if update is not None
        ]
        answered = time.time()
        results = {
            (result.environment, result.test): result
            for update in updates
            for result in update.run.results
        }.values()
        assert {result.verdict for result in results} == {Verdict.FIXED}
        assert len(results) == sum(len(batch.cases) for batch in batches)
        started = min(result.started_at for result in results)
        times = (
            started - requested,
            answered - requested,
            sum(result.duration_s for result in results),
        )
        return cls(*(round(seconds, 2) for seconds in times))


def test_overhead_of_a_batch_in_addition_to_its_cells(
    cluster: Cluster, make_target: MakeTarget, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The same number of environments run at a time on the same cores, so the difference is the
    cluster's overhead. Its start, with an environment
    builder for each node, happens once a run. A busy machine increases both."""
    cases = tuple(version_case(tmp_path / "cases", f"case-{number}") for number in range(2))
    batches = [Batch(str(make_target(vllm="0.8.5")), cases, {}) for _ in range(BATCHES)]
    local = Run.of(
        ThreadsExecutor(build_with_cache(print), AT_ONCE, print),
        batches,
        BatchFiles(tmp_path / "here"),
    )
    on_cluster = Run.of(
        RayExecutor(cluster.address, print), batches, BatchFiles(tmp_path / "there")
    )
    costs = ((on_cluster.all - on_cluster.first) - (local.all - local.first)) / BATCHES
    measured = {
        "jobs": dataclasses.asdict(local),
        "on": dataclasses.asdict(on_cluster),
        "each": round(costs, 2),
    }
    keep(request.config, "batches", {"batches": BATCHES, "at_once": AT_ONCE, **measured})
