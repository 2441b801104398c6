"""Nodes die at random while many batches run: each batch still gets its result.

``VLLM_REGRESS_TEST_BATCHES=2000 pytest tests/cluster/test_many_batches.py`` is the measurement.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
from pathlib import Path

import pytest

from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.runner.batch import Batch, BatchUpdate, RunOptions, RunOutcome
from pytest_vllm_regress.runner.journal import Journal
from pytest_vllm_regress.runner.progress import Progress
from pytest_vllm_regress.runner.ray_executor import RayExecutor
from pytest_vllm_regress.runner.run import RunRequest, run_batches
from pytest_vllm_regress.util.sizes import GIB, MIB
from tests.cluster.conftest import Cluster
from tests.conftest import MakeTarget
from tests.helpers.waiting_cases import version_case

BATCHES = int(os.environ.get("VLLM_REGRESS_TEST_BATCHES", "20"))
RUNS = 5
"""A batch that has lost its node twice is given up until the same command runs again."""
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600 + 5 * BATCHES)]
NODE = {"num_cpus": 2, "memory": 7 * GIB, "object_store_memory": 80 * MIB}


@dataclasses.dataclass
class Killing(Progress):
    """After every tenth part of the results, kills a node and starts another. The head, through
    which the driver talks to the cluster, stays."""

    cluster: Cluster
    finished: int = 0
    killed: int = 0

    def show(self, update: BatchUpdate | None) -> None:
        if update is None or not update.run.results:
            return
        self.finished += 1
        if self.finished % max(1, BATCHES // 10) == 0 and self.cluster.nodes:
            node = random.Random(self.finished).choice(self.cluster.nodes)
            self.cluster.ray_cluster.remove_node(node, allow_graceful=False)
            self.cluster.nodes.remove(node)
            self.killed += 1
            # On a busy machine a node may not start within the 30 s that Ray gives it. The others
            # go on without it.
            with contextlib.suppress(Exception):
                self.cluster.nodes.append(self.cluster.ray_cluster.add_node(**NODE))


def test_no_batch_is_lost_while_nodes_die(
    cluster: Cluster, make_target: MakeTarget, tmp_path: Path
) -> None:
    cluster.nodes.append(cluster.ray_cluster.add_node(**NODE))  # the fourth
    target, case = make_target(vllm="0.8.5"), version_case(tmp_path / "cases", "case-0")
    targets = [target.with_name(f"python-{number}") for number in range(BATCHES)]
    for link in targets:
        link.symlink_to(target.name)
    batches = [Batch(str(link), (case,), {}) for link in targets]
    journal, progress = Journal(tmp_path / "journal", ["many"]), Killing(cluster)

    def run() -> RunOutcome:
        executor = RayExecutor(cluster.address, print)
        return run_batches(RunRequest(batches, executor, RunOptions(), progress, journal))

    outcome = run()
    for _ in range(RUNS):
        if not outcome.lost:
            break
        outcome = run()
    assert progress.killed
    results = {result.environment: result.verdict for result in outcome.run.results}
    assert len(results) == BATCHES and set(results.values()) == {Verdict.FIXED}
