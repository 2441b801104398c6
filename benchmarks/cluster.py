"""Estimate how long a matrix takes on 1 to 64 nodes. This is a simulation from recorded durations;
no engine runs.

    python benchmarks/cluster.py [--cores-each N]

It prints a table for the evidence environments of all cases, and one for all cases on every listed
vLLM: minutes, speed-up over one node, environments built, and cells per day for each number of
nodes.

The batches are those of ``--on``. A free node takes the next batch, as in Ray's queue. Each
environment costs ``ENVIRONMENT_S``, which is assumed, on every node that needs it for the first
time. The overhead of a batch was measured (`pytest tests/cluster -k costs --cluster-record`).
"""

from __future__ import annotations

import argparse
import heapq
import json
from collections.abc import Sequence
from pathlib import Path

from pytest_vllm_regress.cases.loading import load_all_cases
from pytest_vllm_regress.runner.batch import Batch
from pytest_vllm_regress.runner.plan import (
    ENVIRONMENT_S,
    named_environments,
    plan_batches,
    recorded_seconds,
    split_batches,
)

ROOT = Path(__file__).resolve().parent.parent
NODES = (1, 2, 4, 8, 16, 32, 64)
RECORD = ROOT / "docs" / "records" / "cluster.json"


def batch_s() -> float:
    """Return the overhead of a batch in seconds: worker, process, pytest with its agent, and its
    share of the run's start."""
    measured = json.loads(RECORD.read_text())["batches"]["measured"]
    return float(
        (measured["on"]["all"] * measured["at_once"] - measured["on"]["cells"])
        / measured["batches"]
    )


def makespan(
    jobs: Sequence[Batch],
    nodes: int,
    start_s: float,
    batches_each: int = 1,
    environment_s: float = ENVIRONMENT_S,
) -> tuple[float, int]:
    """Return the seconds until the last cell has ended, and the number of environments built.

    ``start_s`` is the overhead of a batch, ``batches_each`` the number of concurrent batches on a
    node.
    """
    free = [(0.0, number % nodes) for number in range(nodes * batches_each)]
    heapq.heapify(free)
    built: set[tuple[int, str]] = set()
    last = 0.0
    for job, batch in split_batches(jobs, nodes * batches_each):
        end, node = heapq.heappop(free)
        build = 0.0 if (node, job.environment) in built else environment_s
        built.add((node, job.environment))
        end += (
            start_s + build + sum(recorded_seconds(case, job.environment) for case in batch.cases)
        )
        last = max(last, end)
        heapq.heappush(free, (end, node))
    return last, len(built)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--cores-each", type=int, default=2, help="cores of a node; a batch takes two (default 2)"
    )
    batches_each = max(1, parser.parse_args().cores_each // 2)
    cases, start_s = load_all_cases(ROOT / "cases"), batch_s()
    for title, jobs in (
        ("the evidence environments of all cases", plan_batches(cases, all_evidence=True)),
        (
            "all cases on every listed vLLM",
            plan_batches(cases, named_environments(cases, [], ">=0.5")),
        ),
    ):
        cells = sum(len(job.cases) for job in jobs)
        work = sum(recorded_seconds(case, job.environment) for job in jobs for case in job.cases)
        print(
            f"\n{title}: {cells} cells in {len(jobs)} environments, {work / 3600:.1f} hours of cells\n"
        )
        print(
            "| nodes | minutes | against one | environments built | cells a day |\n| --- | --- | --- | --- | --- |"
        )
        alone = makespan(jobs, 1, start_s, batches_each)[0]
        for nodes in NODES:
            took, built = makespan(jobs, nodes, start_s, batches_each)
            print(
                f"| {nodes} | {took / 60:.0f} | {alone / took:.1f} | {built} | {cells * 86400 / took:,.0f} |"
            )


if __name__ == "__main__":
    main()
