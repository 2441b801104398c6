"""Measure what a run on a cluster costs the machine that drives it.

    python benchmarks/cluster_driver.py [--nodes 64 512] [--deaths SHARE] [--cases N]

The driver is the real one: batches, requests and replies on the wire, journal, progress. The
cluster is not: a stand-in for Ray answers each request in the recorded durations of its cases, on a
clock that jumps from event to event. All cases run in the listed environments of vLLM 0.7 and
later. A share of the tasks loses its node at a random time.

For each number of nodes it prints the processor time of the driver, for each cell also in the first
and the last tenth of the run, and its memory: neither may grow much with what has been done. It
exits with status 1 if a cell is lost.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil

from pytest_vllm_regress._version import __version__
from pytest_vllm_regress.cases.loading import load_all_cases
from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.runner.batch import Batch, BatchUpdate, RunOptions
from pytest_vllm_regress.runner.journal import Journal
from pytest_vllm_regress.runner.plan import ENVIRONMENT_S, named_environments, recorded_seconds
from pytest_vllm_regress.runner.progress import CaseLines
from pytest_vllm_regress.runner.ray_executor import RayExecutor
from pytest_vllm_regress.runner.run import RunRequest, run_batches
from pytest_vllm_regress.runner.wire import (
    BatchReply,
    BatchRequest,
    decode_request,
    encode_reply,
)
from pytest_vllm_regress.util.sizes import GIB, MIB

ROOT = Path(__file__).resolve().parent.parent
BACK_S = 60.0
"""Seconds until a node that died is replaced."""


class RayError(Exception):
    """Stands for Ray's class of this name, and for those derived from it."""


class Stream:
    """The replies of one task as (time, reply), in order. ``dies``: time at which its node dies.

    ``wait_for`` is told when there will be a reply.
    """

    def __init__(
        self,
        replies: Iterator[tuple[float, str]],
        dies: float,
        wait_for: Callable[[float, Stream], None],
    ) -> None:
        self._replies, self._dies, self._wait_for = replies, dies, wait_for
        self._forward()

    def _forward(self) -> None:
        self._due = next(self._replies, None)
        if self._due is not None:
            self._wait_for(min(self._due[0], self._dies), self)

    def __next__(self) -> str:
        if self._due is None:
            raise StopIteration
        at, reply = self._due
        if at > self._dies:
            raise RayError("the node died")
        self._forward()
        return reply


class FakeRay:
    """The functions of Ray that the driver calls. Nodes run tasks in the order of submission."""

    def __init__(self, nodes: int, deaths: float) -> None:
        self.now = self.spent_s = 0.0
        self.died = 0
        self._deaths, self._random = deaths, random.Random(7)
        self._names = [f"node-{number}" for number in range(nodes)]
        self._free = [(0.0, name) for name in self._names]
        self._due: list[tuple[float, int, Stream]] = []
        self._numbers = itertools.count()
        self._built: set[tuple[str, str]] = set()
        self._cases = {case.id: case for case in load_all_cases(ROOT / "cases")}

    def install(self) -> None:
        """Install this object as the module ``ray``."""
        ray: Any = ModuleType("ray")
        for name in ("nodes", "wait", "get", "remote"):
            setattr(ray, name, getattr(self, name))
        ray.is_initialized = lambda: True
        ray.cancel = lambda stream, force: None
        context = SimpleNamespace(get_job_id=lambda: "1", get_node_id=lambda: self._names[0])
        ray.get_runtime_context = lambda: context
        names = (
            "LocalRayletDiedError",
            "GetTimeoutError",
            "OutOfMemoryError",
            "NodeDiedError",
            "WorkerCrashedError",
        )
        ray.exceptions = SimpleNamespace(
            RayError=RayError, **{name: type(name, (RayError,), {}) for name in names}
        )
        strategies: Any = ModuleType("ray.util.scheduling_strategies")
        strategies.NodeAffinitySchedulingStrategy = lambda *arguments, **options: None
        modules = {"ray": ray, "ray.exceptions": ray.exceptions, "ray.util": ModuleType("ray.util")}
        sys.modules.update({**modules, strategies.__name__: strategies})

    def nodes(self) -> list[dict[str, Any]]:
        resources = {"CPU": 2.0, "memory": 8.0 * GIB}
        return [
            {"NodeID": name, "NodeManagerAddress": name, "Resources": resources, "Alive": True}
            for name in self._names
        ]

    def remote(self, what: Any) -> Any:
        if what.__name__ == "run_batch_on_node":
            actor: Any = SimpleNamespace(remote=self._start)
        else:
            facts = SimpleNamespace(remote=lambda: {"vllm-regress": __version__})
            actor = SimpleNamespace(remote=lambda: SimpleNamespace(facts=facts))
        return SimpleNamespace(options=lambda **options: actor)

    def wait(self, calls: Sequence[Any], **options: Any) -> tuple[list[Any], list[Any]]:
        if not isinstance(calls[0], Stream):
            return [*calls], []
        self.now, _, stream = heapq.heappop(self._due)
        return [stream], []

    def get(self, value: Any, **options: Any) -> Any:
        return value

    def _wait_for(self, at: float, stream: Stream) -> None:
        heapq.heappush(self._due, (at, next(self._numbers), stream))

    def _start(self, line: str, build: str) -> Stream:
        began_at = time.process_time()
        request = decode_request(line)
        free, node = heapq.heappop(self._free)
        is_built = (node, request.environment) in self._built
        self._built.add((node, request.environment))
        began = max(free, self.now) + (0.0 if is_built else ENVIRONMENT_S)
        seconds = [
            recorded_seconds(self._cases[name], request.environment) for name in request.cases
        ]
        end, dies = began + sum(seconds), math.inf
        if self._random.random() < self._deaths:
            dies, self.died = self._random.uniform(began, end), self.died + 1
        heapq.heappush(self._free, (min(end, dies + BACK_S), node))
        replies = self._replies(node, request, seconds, began)
        stream = Stream(replies, dies, self._wait_for)
        self.spent_s += time.process_time() - began_at
        return stream

    def _replies(
        self, node: str, request: BatchRequest, seconds: Sequence[float], at: float
    ) -> Iterator[tuple[float, str]]:
        yield at, encode_reply(BatchReply.started(node))
        for case_id, took in zip(request.cases, seconds, strict=True):
            began_at = time.process_time()
            at += took
            result = TestResult(
                case_id,
                "test",
                Verdict.FIXED,
                "passed",
                "sim",
                request.environment,
                duration_s=took,
            )
            run = RunResult((result,))
            line = encode_reply(BatchReply(run=run, last=False, node={"node": node}))
            self.spent_s += time.process_time() - began_at
            yield at, line
        yield at, encode_reply(BatchReply(node={"node": node}))


@dataclass
class Meter(CaseLines):
    """Progress without output that records the driver's time and memory after each cell."""

    ray: FakeRay

    def __post_init__(self) -> None:
        super().__init__(lambda line: None, logs=False, bar=False)
        self.samples: list[tuple[float, float]] = []
        """Processor seconds of the driver, and its memory in MiB."""

    def show(self, update: BatchUpdate | None) -> None:
        super().show(update)
        if update is not None and update.run.results:
            used = time.process_time() - self.ray.spent_s
            self.samples.append((used, psutil.Process().memory_info().rss / MIB))


def drive(nodes: int, batches: Sequence[Batch], deaths: float) -> bool:
    """Run the batches, print a row, and return whether each cell has a result."""
    ray = FakeRay(nodes, deaths)
    ray.install()
    meter = Meter(ray)
    executor = RayExecutor("ray", lambda line: None, clock=lambda: ray.now)
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder), [str(nodes)])
        began = time.process_time()
        outcome = run_batches(RunRequest(batches, executor, RunOptions(), meter, journal))
        used = time.process_time() - began - ray.spent_s
    cells = sum(len(batch.cases) for batch in batches)
    tenth = max(1, len(meter.samples) // 10)
    first, last = meter.samples[: tenth + 1], meter.samples[-tenth - 1 :]
    each_ms = [1000 * (part[-1][0] - part[0][0]) / tenth for part in (first, last)]
    middle = meter.samples[len(meter.samples) // 2]
    given_up = sum(r.verdict is Verdict.INCONCLUSIVE for r in outcome.run.results)
    print(
        f"| {nodes} | {cells} | {ray.now / 60:.0f} | {ray.died} | {given_up} | {used:.1f} "
        f"| {each_ms[0]:.2f} | {each_ms[1]:.2f} "
        f"| {first[0][1]:.0f} | {middle[1]:.0f} | {last[-1][1]:.0f} |",
        flush=True,
    )
    return len({(r.case_id, r.environment) for r in outcome.run.results}) == cells


def main() -> int:
    """Print a row for each number of nodes. Return 1 if a cell was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=[64, 512])
    parser.add_argument("--deaths", type=float, default=0.02, help="share of tasks (default 0.02)")
    parser.add_argument("--cases", type=int, help="number of cases (default: all)")
    options = parser.parse_args()
    cases = load_all_cases(ROOT / "cases")[: options.cases]
    batches = [Batch(name, cases, {}) for name in named_environments(cases, [">=0.7"])]
    print(
        "| nodes | cells | minutes | nodes died | given up | driver, s | first tenth, ms a cell "
        "| last tenth | MiB at first | halfway | at last |\n|" + " --- |" * 11
    )
    complete = [drive(nodes, batches, options.deaths) for nodes in options.nodes]
    return 0 if all(complete) else 1


if __name__ == "__main__":
    sys.exit(main())
