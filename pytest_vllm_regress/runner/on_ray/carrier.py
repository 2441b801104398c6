"""The carrier for Ray: one task for each batch of an environment's cells, outcomes streamed back, machines' faults kept apart from verdicts."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from pathlib import Path
from typing import Any

from ...cases.results import RunResult
from ...errors import BuildError, UsageError
from .. import runner as runs
from ..carrier import Arrival
from ..cell import CellOutcome, CellRequest, State
from ..journal import Journal
from ..packing import pack
from ..runner import Job, Options, Say
from ..shards import Seconds, batches, recorded
from .cluster import Keepers, Node, connected, in_words, nodes

TICK_S = 0.5
NODES_S = 5.0
"""Between two looks at which nodes there are."""
STARVED_S = 120.0
"""Without a living node that fits, for so long, what waits is given up."""
TRIES = 2


@dataclasses.dataclass
class Flight:
    """A batch under way: cells of ``job`` that have not ended. ``failed``: why earlier tries were lost; ``avoid``: where the last one was."""

    job: Job
    batch: Job
    request: CellRequest
    failed: tuple[str, ...] = ()
    avoid: str = ""
    node: str = ""
    heard: float = 0.0

    def without(self, run: RunResult) -> None:
        """Cells that have ended are done."""
        ended = {result.case_id for result in run.results}
        self.batch = dataclasses.replace(
            self.batch, cases=tuple(each for each in self.batch.cases if each.id not in ended)
        )

    def again(self, why: str) -> Flight:
        """What is left of it, elsewhere."""
        request = dataclasses.replace(self.request, cases=tuple(case.id for case in self.batch.cases))
        return Flight(self.job, self.batch, request, (*self.failed, why), self.node)


class RayCarrier:
    """Runs jobs on a cluster. ``address`` as in ``cluster.connected``; ``gpus`` for each environment on device gpu."""

    def __init__(
        self,
        address: str,
        say: Say,
        gpus: int | None = None,
        seconds: Seconds = recorded,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._say = say
        self._gpus = gpus
        self._seconds = seconds
        self._clock = clock
        self._kept: tuple[str, Keepers] | None = None

    def carry(self, jobs: Sequence[Job], options: Options, journal: Journal) -> Generator[Arrival | None, None, None]:
        """As ``Carrier``. Raises ``UsageError`` where no node can ever run a job."""
        packed = [(job, pack(job, options, self._gpus)) for job in jobs]
        with connected(self._address):
            keepers, living = self._keepers(), nodes()
            keepers.refresh(living)
            for _, request in packed:
                _check_room(request, living)
            keepers.check()
            slots = sum(node.fits(request.needs) for node in living for _, request in packed[:1])
            self._say(f"{len(living)} nodes, room for {slots} environments at a time")
            waiting = deque(
                Flight(job, batch, pack(batch, options, self._gpus))
                for job, batch in batches(jobs, slots, self._seconds)
            )
            yield from self._fly(waiting, keepers, options, journal)

    def _keepers(self) -> Keepers:
        """Those of the connection that there is: who carries again and again starts them once."""
        import ray

        job = str(ray.get_runtime_context().get_job_id())
        if self._kept is None or self._kept[0] != job:
            self._kept = job, Keepers()
        return self._kept[1]

    def _fly(
        self, waiting: deque[Flight], keepers: Keepers, options: Options, journal: Journal
    ) -> Generator[Arrival | None, None, None]:
        import ray

        living, looked, fed = nodes(), self._clock(), self._clock()
        flying: dict[Any, Flight] = {}
        try:
            while waiting or flying:
                if self._clock() - looked > NODES_S:
                    living, looked = nodes(), self._clock()
                    _check_own_node(living)
                    keepers.refresh(living)
                while waiting and len(flying) < _room(living, waiting[0].request):
                    flight = waiting.popleft()
                    flying[_launch(flight, living)] = flight
                    flight.heard = self._clock()
                ready, _ = ray.wait(list(flying), num_returns=1, timeout=TICK_S) if flying else ([], [])
                for stream in ready:
                    outcome = _next(stream, flying[stream])
                    yield from self._arrived(outcome, stream, flying, waiting, options, journal)
                for stream, flight in list(flying.items()):
                    if flight.node and self._clock() - flight.heard > 2 * flight.request.deadline_s:
                        ray.cancel(stream, force=True)
                        why = f"node {flight.node} was silent for {2 * flight.request.deadline_s:.0f} s"
                        lost = CellOutcome(State.LOST, why=why)
                        yield from self._arrived(lost, stream, flying, waiting, options, journal)
                fed = (
                    self._clock() if any(_room(living, each.request) for each in (*waiting, *flying.values())) else fed
                )
                if self._clock() - fed > STARVED_S:
                    for flight in (*waiting, *flying.values()):
                        yield self._given_up(
                            flight, f"no living node has room for it since {STARVED_S:.0f} s", options, ()
                        )
                    return
                yield None
        finally:
            for stream in flying:
                ray.cancel(stream, force=True)

    def _arrived(
        self,
        outcome: CellOutcome,
        stream: Any,
        flying: dict[Any, Flight],
        waiting: deque[Flight],
        options: Options,
        journal: Journal,
    ) -> Generator[Arrival, None, None]:
        flight = flying[stream]
        flight.heard, flight.node = self._clock(), outcome.node.get("node", flight.node)
        if outcome.last:
            del flying[stream]
        if outcome.log:
            _append(journal.log(flight.job), outcome.log)
        others = [each for each in (*waiting, *flying.values()) if each.job is flight.job]
        if outcome.state is State.FINISHED:
            flight.without(outcome.run)
            if outcome.run.results or outcome.last:
                yield Arrival(flight.job, outcome.run, State.FINISHED, outcome.last and not others, outcome.node)
        elif outcome.state is State.UNBUILT:
            found = runs.not_built(flight.batch, BuildError(outcome.why), options)
            yield Arrival(flight.job, found, State.UNBUILT, not others, outcome.node)
        elif not flight.batch.cases:  # the machine failed behind the last cell
            yield Arrival(flight.job, RunResult(), State.FINISHED, not others, outcome.node)
        elif len(flight.failed) + 1 < TRIES:
            self._say(
                f"{flight.job.environment}: {outcome.why}; its {len(flight.batch.cases)} unfinished cells go elsewhere"
            )
            waiting.append(flight.again(outcome.why))
        else:
            yield self._given_up(flight, outcome.why, options, others)

    def _given_up(self, flight: Flight, why: str, options: Options, others: Collection[Flight]) -> Arrival:
        reason = f"the machine failed, which says nothing about the case: {'; then '.join((*flight.failed, why))}"
        found = RunResult(runs.inconclusive(flight.batch.cases, flight.batch, reason, options))
        return Arrival(flight.job, found, State.LOST, not others)


def _check_own_node(living: Sequence[Node]) -> None:
    import ray

    own = ray.get_runtime_context().get_node_id()
    if own not in {node.id for node in living}:
        raise _own_node_died()


def _own_node_died() -> UsageError:
    """Tasks are started through the raylet of our own node: without it none begins any more, wherever it was to run."""
    return UsageError(
        "--on: the node through which this command talks to the cluster died. What has ended is kept: "
        "the same command goes on, through another node"
    )


def _check_room(request: CellRequest, living: Sequence[Node]) -> None:
    if not _room(living, request):
        has = "; ".join(f"{node.name}: {_resources(node)}" for node in living)
        raise UsageError(
            f"{request.environment} needs {request.needs.cores:g} cores, {request.needs.gpus} GPUs and "
            f"{request.needs.memory_bytes / 2**30:.0f} GiB on one node, and no node has them ({has})"
        )


def _resources(node: Node) -> str:
    has = node.resources
    return f"{has.get('CPU', 0):g} cores, {has.get('GPU', 0):g} GPUs, {has.get('memory', 0) / 2**30:.0f} GiB"


def _room(living: Sequence[Node], request: CellRequest) -> int:
    """How many such requests may be under way: as many as fit, and as many that wait for their environment to be built."""
    return 2 * sum(node.fits(request.needs) for node in living)


def _launch(flight: Flight, living: Sequence[Node]) -> Any:
    """A stream of outcomes. Another try goes to another node where there is one."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from .node import run_cells

    needs = flight.request.needs
    elsewhere = [node for node in living if flight.avoid and node.name != flight.avoid and node.fits(needs)]
    where: Any = NodeAffinitySchedulingStrategy(elsewhere[0].id, soft=True) if elsewhere else "SPREAD"
    task = ray.remote(run_cells).options(
        num_cpus=needs.cores,
        num_gpus=needs.gpus,
        memory=needs.memory_bytes,
        max_retries=0,
        num_returns="streaming",
        scheduling_strategy=where,
        name=f"{flight.job.environment} ({len(flight.request.cases)} cases)",
    )
    return task.remote(flight.request.to_text())


def _next(stream: Any, flight: Flight) -> CellOutcome:
    """The stream's next outcome; what Ray raises instead is the machine's fault."""
    import ray

    try:
        return CellOutcome.from_text(ray.get(next(stream)))
    except ray.exceptions.LocalRayletDiedError:
        raise _own_node_died() from None
    except StopIteration:
        return CellOutcome(State.LOST, why=f"node {flight.node}: the task ended without an answer")
    except (ray.exceptions.RayError, UsageError) as error:
        return CellOutcome(State.LOST, why=in_words(error, flight.node))


def _append(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as log:
        log.write(text + "\n")
