"""Run batches on a Ray cluster: one task for each part of a batch, whose replies are streamed back.

# What happens when a machine fails?

The failure of a machine says nothing about the cases. It fails when its Ray node or worker dies,
when pytest is killed, when its disk is full, or when it was silent for twice the request's
deadline. Then (``retry_lost``)

- results that had come back are kept;
- cases without a result are sent once more (``MAX_ATTEMPTS`` is 2). The second attempt goes to
  another node if one has room when it is sent;
- after the second failure they are INCONCLUSIVE and not in the journal, so the same command runs
  them again.

Two situations are not retried. When no living node has had room for any batch
for 120 s, all that is left is given up at once, as after a second failure (``_give_up_all``). When
the node dies through which this command talks to the cluster, the run ends with a
``UsageError`` (``_check_own_node``); finished cases are in the journal, and the same command
resumes through another node.
"""

from __future__ import annotations

import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..cases.results import RunResult
from ..errors import BuildError, UsageError
from .batch import (
    Batch,
    BatchFiles,
    BatchState,
    BatchUpdate,
    Needs,
    RunOptions,
    inconclusive_results,
    not_built,
)
from .plan import Seconds, recorded_seconds, split_batches
from .progress import Say
from .ray_cluster import EnvironmentBuilders, Node, connected, describe_error, living_nodes
from .wire import (
    BatchReply,
    BatchRequest,
    decode_reply,
    encode_request,
    needs_of,
    pack,
)

TICK_S = 0.5
"""Seconds between two updates, so that output is shown meanwhile."""
NODES_S = 5.0
"""Seconds between checks for dead nodes."""
MAX_ATTEMPTS = 2
STARVED_S = 120.0
"""Seconds without a node that has room, after which waiting batches are given up."""
_log = logging.getLogger("vllm_regress.runner")


@dataclass(frozen=True)
class InFlightBatch:
    """A part of a batch that was sent, or waits to be sent, to a node.

    ``batch`` is the whole batch, ``part`` holds the cases that have no result yet, ``request`` is
    what was sent. ``failures``: why earlier
    attempts were lost, ``avoid``: the node of the last one. ``node`` and ``heard_at`` are of its
    latest reply.
    """

    batch: Batch
    part: Batch
    request: BatchRequest
    failures: tuple[str, ...] = ()
    avoid: str = ""
    node: str = ""
    heard_at: float = 0.0

    def after(self, reply: BatchReply, now: float) -> InFlightBatch:
        """The batch after this reply: its node has answered, and the cases that have results are
        done."""
        done = {result.case_id for result in reply.run.results}
        return replace(
            self, part=self.part.without(done), node=reply.node.get("node", self.node), heard_at=now
        )


def retry_lost(in_flight: InFlightBatch, why: str) -> InFlightBatch | None:
    """Return the retry of a batch whose machine failed: the cases without results.

    None after the second failure, when it is given up.
    """
    if len(in_flight.failures) + 1 >= MAX_ATTEMPTS:
        return None
    request = in_flight.request.only(tuple(case.id for case in in_flight.part.cases))
    return InFlightBatch(
        in_flight.batch, in_flight.part, request, (*in_flight.failures, why), in_flight.node
    )


def results_of_given_up(in_flight: InFlightBatch, why: str) -> RunResult:
    """Return INCONCLUSIVE results for the unfinished cases of a batch that is given up."""
    reason = f"the machine failed, which says nothing about the case: {'; then '.join((*in_flight.failures, why))}"
    return RunResult(inconclusive_results(in_flight.part, in_flight.part.cases, reason))


@dataclass
class RayExecutor:
    """Runs batches on a cluster.

    ``address`` as in ``ray_cluster.connected``; ``gpus`` for each batch on device gpu.
    """

    address: str
    say: Say
    gpus: int | None = None
    seconds: Seconds = recorded_seconds
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._builders: tuple[str, EnvironmentBuilders] | None = None

    def execute(
        self, batches: Sequence[Batch], options: RunOptions, files: BatchFiles
    ) -> Generator[BatchUpdate | None, None, None]:
        """As ``Executor``. Raises ``UsageError`` if no node can ever run a batch."""
        needs = needs_of(options, self.gpus)
        requests = {batch.key: pack(batch, options, needs) for batch in batches}
        with connected(self.address):
            builders, nodes = self._environment_builders(), living_nodes()
            builders.refresh(nodes)
            if batches:
                _check_room(batches[0].environment, needs, nodes)
            builders.check()
            slots = sum(node.fits(needs) for node in nodes) if batches else 0
            self.say(f"{len(nodes)} nodes, room for {slots} environments at a time")
            waiting = deque(
                InFlightBatch(
                    batch, part, requests[batch.key].only(tuple(case.id for case in part.cases))
                )
                for batch, part in split_batches(batches, slots, self.seconds)
            )
            yield from _ClusterRun(waiting, needs, builders, files, self.say, self.clock).updates()

    def _environment_builders(self) -> EnvironmentBuilders:
        """Return the builders of the current connection, so that a bisection starts them once."""
        import ray

        job = str(ray.get_runtime_context().get_job_id())
        if self._builders is None or self._builders[0] != job:
            self._builders = job, EnvironmentBuilders()
        return self._builders[1]


@dataclass
class _ClusterRun:
    """One call of ``RayExecutor.execute``: batches that wait, and batches under way by the stream
    of their replies."""

    waiting: deque[InFlightBatch]
    needs: Needs
    builders: EnvironmentBuilders
    files: BatchFiles
    say: Say
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self._in_flight: dict[Any, InFlightBatch] = {}
        self._note_nodes()
        self._room_at = self.clock()

    def updates(self) -> Generator[BatchUpdate | None, None, None]:
        """Send batches while there is room and yield what comes back.

        Ending early cancels what is under way.
        """
        import ray

        try:
            while self.waiting or self._in_flight:
                self._refresh_nodes()
                self._send_waiting()
                streams = list(self._in_flight)
                ready, _ = ray.wait(streams, num_returns=1, timeout=TICK_S) if streams else ([], [])
                for stream in ready:
                    yield from self._handle_reply(
                        stream, _next_reply(stream, self._in_flight[stream])
                    )
                yield from self._cancel_silent()
                if self._room:
                    self._room_at = self.clock()
                elif self.clock() - self._room_at > STARVED_S:
                    yield from self._give_up_all(
                        f"no live node has had room for it for {STARVED_S:.0f} s"
                    )
                    return
                yield None
        finally:
            for stream in self._in_flight:
                ray.cancel(stream, force=True)

    def _note_nodes(self) -> None:
        self._nodes, self._nodes_at = living_nodes(), self.clock()
        self._room = 2 * sum(node.fits(self.needs) for node in self._nodes)
        """How many batches may be under way: as many as fit, and as many that wait until their
        environment is built."""

    def _refresh_nodes(self) -> None:
        if self.clock() - self._nodes_at > NODES_S:
            self._note_nodes()
            _check_own_node(self._nodes)
            self.builders.refresh(self._nodes)

    def _send_waiting(self) -> None:
        while self.waiting and len(self._in_flight) < self._room:
            in_flight = self.waiting.popleft()
            _log.info("sending %s, attempt %d", in_flight.part, len(in_flight.failures) + 1)
            stream = _start_task(in_flight, self._nodes)
            self._in_flight[stream] = in_flight.after(BatchReply(), self.clock())

    def _cancel_silent(self) -> Iterator[BatchUpdate]:
        import ray

        for stream, in_flight in list(self._in_flight.items()):
            limit_s = 2 * in_flight.request.deadline_s
            if in_flight.node and self.clock() - in_flight.heard_at > limit_s:
                ray.cancel(stream, force=True)
                why = f"node {in_flight.node} was silent for {limit_s:.0f} s"
                yield from self._handle_reply(stream, BatchReply(BatchState.LOST, why=why))

    def _handle_reply(self, stream: Any, reply: BatchReply) -> Iterator[BatchUpdate]:
        in_flight = self._in_flight[stream].after(reply, self.clock())
        batch = in_flight.batch
        if reply.last:
            del self._in_flight[stream]
        else:
            self._in_flight[stream] = in_flight
        if reply.log:
            _append(self.files.log(batch), reply.log)
        last = reply.last and not any(
            other.batch is batch for other in (*self.waiting, *self._in_flight.values())
        )
        match reply.state:
            case BatchState.STARTED:
                return
            case BatchState.FINISHED:
                if reply.run.results or reply.last:
                    yield BatchUpdate(batch, reply.run, BatchState.FINISHED, last, reply.node)
            case BatchState.UNBUILT:
                run = not_built(in_flight.part, BuildError(reply.why))
                yield BatchUpdate(batch, run, BatchState.UNBUILT, last, reply.node)
            case BatchState.LOST if (
                not in_flight.part.cases
            ):  # the machine failed after the last case
                yield BatchUpdate(batch, RunResult(), BatchState.FINISHED, last, reply.node)
            case BatchState.LOST:
                yield from self._handle_lost(in_flight, reply.why, last)

    def _handle_lost(self, in_flight: InFlightBatch, why: str, last: bool) -> Iterator[BatchUpdate]:
        retry = retry_lost(in_flight, why)
        if retry is None:
            yield BatchUpdate(
                in_flight.batch, results_of_given_up(in_flight, why), BatchState.LOST, last
            )
        else:
            count = len(in_flight.part.cases)
            self.say(
                f"{in_flight.batch.environment}: {why}; its {count} unfinished cells are sent to another node"
            )
            self.waiting.append(retry)

    def _give_up_all(self, why: str) -> Iterator[BatchUpdate]:
        remaining = [*self.waiting, *self._in_flight.values()]
        for number, in_flight in enumerate(remaining, start=1):
            last = not any(other.batch is in_flight.batch for other in remaining[number:])
            yield BatchUpdate(
                in_flight.batch, results_of_given_up(in_flight, why), BatchState.LOST, last
            )


def _check_own_node(nodes: Sequence[Node]) -> None:
    import ray

    if ray.get_runtime_context().get_node_id() not in {node.id for node in nodes}:
        raise _own_node_died()


def _own_node_died() -> UsageError:
    """Return the error that ends the run: tasks are started through our own node's raylet, and
    without it none starts any more."""
    return UsageError(
        "--on: the node through which this command talks to the cluster died. Finished cells are kept: "
        "repeat the command to resume through another node"
    )


def _check_room(environment: str, needs: Needs, nodes: Sequence[Node]) -> None:
    if not any(node.fits(needs) for node in nodes):
        resources = "; ".join(f"{node.name}: {_describe_resources(node)}" for node in nodes)
        raise UsageError(
            f"{environment} needs {needs.cores:g} cores, {needs.gpus} GPUs and "
            f"{needs.memory_bytes / 2**30:.0f} GiB on one node, and no node has them ({resources})"
        )


def _describe_resources(node: Node) -> str:
    resources = node.resources
    memory_gib = resources.get("memory", 0) / 2**30
    return (
        f"{resources.get('CPU', 0):g} cores, {resources.get('GPU', 0):g} GPUs, {memory_gib:.0f} GiB"
    )


@functools.cache
def _remote_function() -> Any:
    """Return the remote function that runs a batch on a node.

    There is only one, because Ray exports each remote function, and warns that many types of tasks
    reduce its performance.
    """
    import ray

    from .ray_node import run_batch_on_node

    return ray.remote(run_batch_on_node)


def _start_task(in_flight: InFlightBatch, nodes: Sequence[Node]) -> Any:
    """Start the task and return its stream of replies.

    A retry goes to another node if one has room for it.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    request, needs = in_flight.request, in_flight.request.needs
    others = [
        node
        for node in nodes
        if in_flight.avoid and node.name != in_flight.avoid and node.fits(needs)
    ]
    strategy: Any = NodeAffinitySchedulingStrategy(others[0].id, soft=True) if others else "SPREAD"
    task = _remote_function().options(
        num_cpus=needs.cores,
        num_gpus=needs.gpus,
        memory=needs.memory_bytes,
        max_retries=0,
        num_returns="streaming",
        scheduling_strategy=strategy,
        name=f"{in_flight.batch.environment} ({len(request.cases)} cases)",
    )
    # An interpreter's path is not built.
    build_request = encode_request(request.without_cases()) if request.recipes else ""
    return task.remote(encode_request(request), build_request)


def _next_reply(stream: Any, in_flight: InFlightBatch) -> BatchReply:
    """Return the stream's next reply.

    An error that Ray raises instead means that the machine failed.
    """
    import ray

    try:
        return decode_reply(ray.get(next(stream)))
    except ray.exceptions.LocalRayletDiedError:
        raise _own_node_died() from None
    except StopIteration:
        return BatchReply(
            BatchState.LOST, why=f"node {in_flight.node}: the task ended without a reply"
        )
    except (ray.exceptions.RayError, UsageError) as error:
        return BatchReply(BatchState.LOST, why=describe_error(error, in_flight.node))


def _append(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as log:
        log.write(text + "\n")
