"""The servers that are measured: a small text model on the simulated device, with a scheduler that
takes its time."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ...engines.processes import process_tree
from ...engines.processes.child import Child
from ...engines.server import Server
from ...engines.spec import EngineSpec
from ...target_site.vllm_regress_target.sim.pacing import SCHEDULER
from ...util.deadline import Deadline

RUNS = "runs"
DRAIN_S = 30
"""``--shutdown-timeout`` of a server that drains: more than the longest stream takes."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def paced(extra: Mapping[str, Any] = _NOTHING, **fields: Any) -> EngineSpec:
    """Return the spec of a V1 engine whose steps take 50 ms, so that a stream surely runs when
    something happens."""
    return EngineSpec.create(generation="V1", extra={"scheduler_cls": SCHEDULER, **extra}, **fields)


def wait_for_end(child: Child, seconds: float) -> None:
    """Wait until the front process has ended, but no longer than ``seconds``."""
    deadline = Deadline.after("stop", seconds)
    while child.alive and not deadline.passed:
        child.pause(deadline.left_s)


def describe_end(server: Server) -> str:
    """Return how the front process ended, or ``RUNS`` if it is alive."""
    child = server.child
    if child.alive:
        return RUNS
    return (
        "ended" if child.exit_status is None else process_tree.describe_exit_code(child.exit_status)
    )
