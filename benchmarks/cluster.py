"""How long a matrix takes on 1 to 64 nodes: ``python benchmarks/cluster.py [--cores-each N]``. A simulation from recorded durations; no engine runs.

Batches are those that ``--on`` makes. A node takes the next one when it has room, as Ray's queue gives them; an environment costs its
price on every node that meets it for the first time. What a batch costs beside its cells was measured (`pytest tests/cluster -k costs
--cluster-record`); what an environment costs is assumed.
"""

from __future__ import annotations

import argparse
import heapq
import json
from collections.abc import Sequence
from pathlib import Path

from pytest_vllm_regress.cases.model import find_cases
from pytest_vllm_regress.runner import runner as runs
from pytest_vllm_regress.runner.matrix import named_environments
from pytest_vllm_regress.runner.shards import ENVIRONMENT_S, batches, recorded

ROOT = Path(__file__).resolve().parent.parent
NODES = (1, 2, 4, 8, 16, 32, 64)
RECORD = ROOT / "docs" / "records" / "cluster.json"


def batch_s() -> float:
    """Seconds that a batch takes beside its cells: its worker, its process, a pytest with its agent; its part of the run's start, too."""
    seen = json.loads(RECORD.read_text())["batches"]["measured"]
    return float((seen["on"]["all"] * seen["at_once"] - seen["on"]["cells"]) / seen["batches"])


def makespan(
    jobs: Sequence[runs.Job], nodes: int, start_s: float, each: int = 1, environment_s: float = ENVIRONMENT_S
) -> tuple[float, int]:
    """Seconds until the last cell has ended, and environments built. ``start_s`` of each batch; ``each``: batches at a time on a node."""
    free = [(0.0, number % nodes) for number in range(nodes * each)]
    heapq.heapify(free)
    has: set[tuple[int, str]] = set()
    last = 0.0
    for job, batch in batches(jobs, nodes * each):
        at, node = heapq.heappop(free)
        build = 0.0 if (node, job.environment) in has else environment_s
        has.add((node, job.environment))
        at += start_s + build + sum(recorded(case, job.environment) for case in batch.cases)
        last = max(last, at)
        heapq.heappush(free, (at, node))
    return last, len(has)


def main() -> None:
    """Print a table for the proofs' cells, and one for every case on every listed vLLM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cores-each", type=int, default=2, help="cores of a node; a batch takes two (default 2)")
    each = max(1, parser.parse_args().cores_each // 2)
    cases, start_s = find_cases(ROOT / "cases"), batch_s()
    for title, jobs in (
        ("the evidence environments of all cases", runs.plan(cases, all_evidence=True)),
        ("all cases on every listed vLLM", runs.plan(cases, named_environments(cases, [], ">=0.5"))),
    ):
        cells = sum(len(job.cases) for job in jobs)
        work = sum(recorded(case, job.environment) for job in jobs for case in job.cases)
        print(f"\n{title}: {cells} cells in {len(jobs)} environments, {work / 3600:.1f} hours of cells\n")
        print("| nodes | minutes | against one | environments built | cells a day |\n| --- | --- | --- | --- | --- |")
        alone = makespan(jobs, 1, start_s, each)[0]
        for nodes in NODES:
            took, built = makespan(jobs, nodes, start_s, each)
            print(f"| {nodes} | {took / 60:.0f} | {alone / took:.1f} | {built} | {cells * 86400 / took:,.0f} |")


if __name__ == "__main__":
    main()
