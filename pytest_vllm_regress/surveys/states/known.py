"""The known failures that cells of the tables show."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from .health import HEALTH, HEALTHY, TOKEN, HealthRow, State
from .measure import HEALTH as HEALTH_TABLE
from .measure import SHUTDOWN
from .requests import COMPLETE, SILENT
from .servers import RUNS
from .shutdown import ShutdownRow

_UPSTREAM = "https://github.com/vllm-project/vllm/issues/"


@dataclasses.dataclass(frozen=True)
class Known:
    """A failure that a row of the table shows if ``shows`` says so of its name and content.

    ``case``: its case. ``upstream``: number of a report.
    """

    table: str
    text: str
    shows: Callable[[str, Any], bool]
    case: str = ""
    upstream: int = 0

    @property
    def link(self) -> str:
        """Markdown of a link to the case or the report, from docs/generated."""
        if self.case:
            return f"[{self.case}](../../cases/{self.case}/README.md)"
        return f"[vllm-project/vllm#{self.upstream}]({_UPSTREAM}{self.upstream})"


def _claims_health(state: State) -> Callable[[str, HealthRow], bool]:
    return lambda name, row: (
        name == state and row.answers[HEALTH] == HEALTHY and row.answers[TOKEN] != HEALTHY
    )


def _cut(name: str, row: ShutdownRow) -> bool:
    return name == "SIGTERM, streaming" and row.exit != RUNS and row.stream != COMPLETE


def _never_ends(name: str, row: ShutdownRow) -> bool:
    return name.endswith("streaming") and row.exit == RUNS


def _orphans(name: str, row: ShutdownRow) -> bool:
    return name.startswith("SIGKILL of the server") and bool(
        {"core", "worker"}.intersection(row.left)
    )


KNOWN = (
    Known(
        HEALTH_TABLE,
        "healthy while the core is stopped",
        _claims_health(State.CORE_STOPPED),
        case="vllm-36451",
    ),
    Known(
        HEALTH_TABLE,
        "healthy while the scheduler is stuck: nothing asks whether requests progress",
        _claims_health(State.SCHEDULER_STUCK),
        upstream=43122,
    ),
    Known(
        HEALTH_TABLE,
        "healthy, and requests wait forever, after the core was killed",
        _claims_health(State.CORE_DEAD),
        case="vllm-21443",
    ),
    Known(
        HEALTH_TABLE,
        "healthy, and requests wait forever, after a worker was killed",
        _claims_health(State.WORKER_DEAD),
        case="vllm-11737",
    ),
    Known(
        HEALTH_TABLE,
        "healthy while it drains and takes no request: a load balancer goes on sending",
        _claims_health(State.DRAINING),
        upstream=32334,
    ),
    Known(
        HEALTH_TABLE,
        "answers nothing while it drains: a liveness probe fails and ends it before its streams are complete",
        lambda name, row: name == State.DRAINING and row.answers[HEALTH] == SILENT,
        upstream=32334,
    ),
    Known(
        HEALTH_TABLE,
        "healthy while it sleeps; a request waits until somebody wakes the engine",
        _claims_health(State.ASLEEP),
        upstream=15483,
    ),
    Known(SHUTDOWN, "SIGTERM cuts streams", _cut, case="vllm-24885"),
    Known(
        SHUTDOWN,
        "a signal during a stream does not end the server: it waits for the connection to close, and nothing ends the stream any more",
        _never_ends,
        upstream=36964,
    ),
    Known(
        SHUTDOWN, "a killed server leaves its core, which keeps the GPU", _orphans, upstream=55510
    ),
)
