"""What Ray runs on the cluster's nodes: a task for each batch, and an actor that builds
environments.

Neither imports a target or runs pytest. A guard (``runner/guard.py``) does, with the environment variables of
the node, and survives what Ray kills.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ray

from .._version import __version__
from .batch import BatchState
from .guard import run_request
from .wire import BatchReply, encode_reply, head_of, machine_facts

NAMESPACE = "vllm-regress"
_SET_BY_RAY = ("PYTHONPATH", "PYTHONBREAKPOINT", "SPT_NOENV", "VIRTUAL_ENV_PROMPT")
"""Variables that Ray sets besides RAY_*."""


def run_batch_on_node(request: str, build_request: str) -> Iterator[str]:
    """Yield the encoded replies to an encoded request; the first one says which node this is.

    The node's ``EnvironmentBuilder`` builds the environment first if there is a ``build_request``
    ("" for an interpreter).
    """
    node, keep_running = node_name(), _raylet_lives()
    _raise_priority_to_raylet()
    yield encode_reply(BatchReply.started(node))
    try:
        builder = ray.get_actor(environment_builder_name(), NAMESPACE)
    except ValueError:  # a node that joined a moment ago: the batch's own worker builds
        builder = None
    if builder is not None and build_request:
        # While this waits the task's cores are free for others, so environments are built beside
        # running batches.
        built = ray.get(builder.build.remote(build_request))
        if head_of(built).state is not BatchState.FINISHED:
            yield built
            return
    yield from run_request(request, environment(), node, keep_running)


class EnvironmentBuilder:
    """An actor on each node that builds each environment once, and finds leftovers of runs that
    have ended."""

    def __init__(self) -> None:
        self._keep_running = _raylet_lives()
        self._building: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._built: dict[str, str] = {}

    def facts(self) -> dict[str, str]:
        """Return facts of the node, with its version of this package."""
        return {**machine_facts(node_name()), "vllm-regress": __version__}

    def build(self, request: str) -> str:
        """Build the environment of an encoded request and return the encoded reply.

        An environment that cannot be built is not tried twice.
        """
        with self._building[request]:
            if request not in self._built:
                _raise_priority_to_raylet()
                *_, reply = run_request(request, environment(), node_name(), self._keep_running)
                if head_of(reply).state is BatchState.LOST:
                    return reply  # the disk may have room the next time
                self._built[request] = reply
            return self._built[request]

    def leftovers(self, remove: bool) -> list[dict[str, Any]]:
        """Return the leftovers of ended runs on the node, as ``vllm-regress doctor`` shows them
        there."""
        from ..engines.processes.abandoned import of_builds, of_runs

        return [trace.to_json(remove=remove) for trace in (*of_runs(), *of_builds())]


def node_name() -> str:
    """Return the name of this node in results: its address and the beginning of its id."""
    return f"{ray.util.get_node_ip_address()}/{ray.get_runtime_context().get_node_id()[:8]}"


def environment_builder_name(node_id: str = "") -> str:
    """Return the name of the actor on a node (default: this one)."""
    return f"environment-builder-{node_id or ray.get_runtime_context().get_node_id()}"


def environment() -> dict[str, str]:
    """Return the environment variables for a batch: those of the node, and the GPUs that Ray gives
    to this task."""
    variables = without_ray(_environment_of_raylet() or os.environ)
    gpus = {name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES",) if name in os.environ}
    return variables | (gpus if ray.get_gpu_ids() else {})


def without_ray(variables: Mapping[str, str]) -> dict[str, str]:
    """Remove variables that would show a process the cluster or our packages.

    Ray starts its processes with jemalloc in LD_PRELOAD.
    """
    jemalloc = {
        "LD_PRELOAD": variables.get("RAY_JEMALLOC_LIB_PATH"),
        "MALLOC_CONF": variables.get("RAY_JEMALLOC_CONF"),
    }
    return {
        name: value
        for name, value in variables.items()
        if not name.startswith("RAY_")
        and name not in _SET_BY_RAY
        and value != jemalloc.get(name)
        and not _is_rays_preload(name, value)
    }


def _is_rays_preload(name: str, value: str) -> bool:
    return name == "LD_PRELOAD" and Path(value).is_relative_to(Path(ray.__file__).parent)


def _raise_priority_to_raylet() -> None:
    """Give processes that this thread starts the priority of the raylet. Only root may do that.

    Ray runs its workers at nice 15; on a busy node a batch would miss its deadlines.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, os.getppid()))


def _environment_of_raylet() -> dict[str, str]:
    try:
        entries = (
            Path(f"/proc/{os.getppid()}/environ")
            .read_bytes()
            .decode(errors="surrogateescape")
            .split("\0")
        )
    except OSError:
        return {}
    return dict(entry.partition("=")[::2] for entry in entries if "=" in entry)


def _raylet_lives() -> Callable[[], bool]:
    """Return a function that ends this worker when its raylet is gone.

    Ray's workers go on for a while without it, and so would the batch.
    """
    raylet = os.getppid()

    def lives() -> bool:
        if os.getppid() != raylet:
            os._exit(1)
        return True

    return lives
