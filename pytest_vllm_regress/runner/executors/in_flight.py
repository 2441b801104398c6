"""A batch under way on a Ray cluster, and what happens when its machine fails.

The failure of a machine says nothing about the cases. It fails when its Ray node or worker dies,
when pytest is killed, when its disk is full, or when it was silent for twice the request's
deadline. Then (``retry_lost``)

- results that had come back are kept;
- cases without a result are sent once more (``MAX_ATTEMPTS`` is 2). The second attempt goes to
  another node if one has room when it is sent;
- after the second failure they are INCONCLUSIVE and not in the journal, so the same command runs
  them again.

Two situations do not come here, both in ``ray.py``. When no living node has had room for any batch
for 120 s, all that is left is given up at once, as after a second failure (``_give_up_all``). When
the node dies through which this command talks to the cluster, the run ends with a
``UsageError`` (``_check_own_node``); finished cases are in the journal, and the same command
resumes through another node.
"""

from __future__ import annotations

import dataclasses

from ...cases.results import RunResult
from ..batch import Batch
from ..remote.wire import BatchReply, BatchRequest
from ..unfinished import inconclusive_results

MAX_ATTEMPTS = 2


@dataclasses.dataclass(frozen=True)
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
        return dataclasses.replace(
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
