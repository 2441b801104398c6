"""What runs on the cluster's nodes: a task that has cells run there, and a keeper of the node's environments.

Neither imports a target or runs pytest: a ``cell_process`` does, in the environment that the node was started in, and outlives whom Ray kills.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ray

from ..._version import __version__
from ..cell import CellOutcome, CellRequest, State
from ..cell_client import outcomes
from ..machine import facts

NAMESPACE = "vllm-regress"
_RAYS_OWN = ("PYTHONPATH", "PYTHONBREAKPOINT", "SPT_NOENV", "VIRTUAL_ENV_PROMPT")
"""What Ray sets beside its RAY_*."""


def run_cells(request: str) -> Iterator[str]:
    """Outcomes of the request's cells; the first one says which node this is. The environment is built by the node's keeper."""
    node, go_on = node_name(), _raylet_lives()
    _as_urgent_as_the_raylet()
    yield CellOutcome(last=False, node={"node": node}).to_text()
    try:
        keeper = ray.get_actor(keeper_name(), NAMESPACE)
    except ValueError:  # a node that has come since: the cells' own process builds
        keeper = None
    if keeper is not None and CellRequest.from_text(request).recipes:  # an interpreter is not built
        # While it waits the task's cores are free for others: environments are built beside what runs.
        built = CellOutcome.from_text(ray.get(keeper.build.remote(request)))
        if built.state is not State.FINISHED:
            yield built.to_text()
            return
    yield from outcomes(request, environment(), node, go_on)


class Keeper:
    """One on each node: builds each environment once, and says what is left behind there."""

    def __init__(self) -> None:
        self._go_on = _raylet_lives()
        self._building: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._built: dict[str, str] = {}

    def facts(self) -> dict[str, str]:
        """Of the node, with the version of this package that it has."""
        return {**facts(node_name()), "vllm-regress": __version__}

    def build(self, text: str) -> str:
        """The outcome of building a request's environment. One that cannot be built is not tried twice."""
        request = dataclasses.replace(CellRequest.from_text(text), cases=(), files={}, pytest_args=())
        key = request.to_text()
        with self._building[key]:
            if key not in self._built:
                _as_urgent_as_the_raylet()
                *_, last = outcomes(key, environment(), node_name(), self._go_on)
                if CellOutcome.from_text(last).state is State.LOST:
                    return last  # the disk may have room the next time
                self._built[key] = last
            return self._built[key]

    def holds(self) -> list[str]:
        """Environments that the node's cache has."""
        from ...environments.cache import EnvironmentCache

        return [each.name for each in EnvironmentCache().listing()]

    def leftovers(self, remove: bool) -> list[dict[str, Any]]:
        """What runs that have ended left on the node, as ``vllm-regress doctor`` there shows it."""
        from ...processes.leftovers import of_builds, of_runs

        found = [*of_runs(), *of_builds()]
        return [each.to_json(remove=remove) for each in found]


def node_name() -> str:
    """This node in results: its address and the beginning of Ray's id."""
    return f"{ray.util.get_node_ip_address()}/{ray.get_runtime_context().get_node_id()[:8]}"


def keeper_name(node_id: str = "") -> str:
    """Of the keeper on a node (default: this one)."""
    return f"keeper-{node_id or ray.get_runtime_context().get_node_id()}"


def environment() -> dict[str, str]:
    """Variables for what runs cells: those that the node was started with, and the GPUs that Ray gives to this task."""
    around = scrubbed(_of_raylet() or os.environ)
    gpus = {name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES",) if name in os.environ}
    return around | (gpus if ray.get_gpu_ids() else {})


def scrubbed(around: Mapping[str, str]) -> dict[str, str]:
    """Without what tells a process of the cluster, or of the harness's packages. Ray starts its own with its allocator (jemalloc) in LD_PRELOAD."""
    own = {"LD_PRELOAD": around.get("RAY_JEMALLOC_LIB_PATH"), "MALLOC_CONF": around.get("RAY_JEMALLOC_CONF")}
    return {
        name: value
        for name, value in around.items()
        if not name.startswith("RAY_")
        and name not in _RAYS_OWN
        and value != own.get(name)
        and not _is_of_ray(name, value)
    }


def _is_of_ray(name: str, value: str) -> bool:
    return name == "LD_PRELOAD" and Path(value).is_relative_to(Path(ray.__file__).parent)


def _as_urgent_as_the_raylet() -> None:
    """For what this thread starts. Ray makes workers nice (15), and on a busy node what they run misses its deadlines. Going back is for root."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, os.getppid()))


def _of_raylet() -> dict[str, str]:
    try:
        entries = Path(f"/proc/{os.getppid()}/environ").read_bytes().decode(errors="surrogateescape").split("\0")
    except OSError:
        return {}
    return dict(entry.partition("=")[::2] for entry in entries if "=" in entry)


def _raylet_lives() -> Any:
    """Whether the process that started this worker still does. Ray's workers go on for a while without it, and so would the cells."""
    raylet = os.getppid()

    def lives() -> bool:
        if os.getppid() != raylet:
            os._exit(1)
        return True

    return lives
