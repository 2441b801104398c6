"""The Ray cluster as the driver sees it: the connection, nodes and their resources, environment
builders, and descriptions of Ray's errors."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from ..._version import __version__
from ...errors import UsageError
from ..batch import Needs
from .ray_discovery import own_cluster
from .ray_reachability import check_reachable

READY_S = 60.0
"""Seconds that the environment builders of a cluster have to answer."""


@dataclasses.dataclass(frozen=True)
class Node:
    """A living node and all its resources, in use or not."""

    id: str
    address: str
    resources: Mapping[str, float] = dataclasses.field(hash=False)

    @property
    def name(self) -> str:
        """Its name in results."""
        return f"{self.address}/{self.id[:8]}"

    def fits(self, needs: Needs) -> int:
        """Return how many batches with these needs fit at a time."""
        amounts = {"CPU": needs.cores, "GPU": needs.gpus, "memory": needs.memory_bytes}
        return int(
            min(
                self.resources.get(name, 0.0) // amount
                for name, amount in amounts.items()
                if amount
            )
        )


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect to the cluster: ``ray`` (RAY_ADDRESS, else the one of this user or root on this
    machine), ``ray://HOST[:PORT]`` or ``HOST:PORT``.

    Raises ``UsageError`` if there is no Ray or no cluster. An existing connection is used and kept.
    """
    try:
        import ray
    except ImportError:
        raise UsageError(
            "--on: Ray is not installed: pip install 'pytest-vllm-regress[ray]'"
        ) from None
    from .ray_node import NAMESPACE

    if ray.is_initialized():
        yield
        return
    where = os.environ.get("RAY_ADDRESS", "") if address == "ray" else address
    if where in ("", "auto"):
        where = own_cluster()
    if where.startswith("ray://") and ":" not in where.removeprefix("ray://"):
        where += ":10001"
    check_reachable(address, where)
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            where,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level="ERROR",
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise UsageError(
            f"--on {address}: no cluster answers at {where}: {str(error).splitlines()[0] if str(error) else error!r}. "
            "Start one (`ray start --head`), or name one by RAY_ADDRESS or --on ray://HOST"
        ) from None
    if threading.current_thread() is threading.main_thread():
        # Ray sets handlers of its own, which print a C++ trace and exit: the results so far would
        # not be shown.
        signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        ray.shutdown()


def living_nodes() -> tuple[Node, ...]:
    """Return the nodes that are alive."""
    import ray

    return tuple(
        Node(node["NodeID"], node["NodeManagerAddress"], node["Resources"])
        for node in ray.nodes()
        if node["Alive"]
    )


class EnvironmentBuilders:
    """An ``EnvironmentBuilder`` actor on every node, as long as the connection lasts."""

    def __init__(self) -> None:
        self._by_node: dict[str, Any] = {}

    def refresh(self, living: tuple[Node, ...]) -> None:
        """Start an actor on each node that has none, and forget those of dead nodes."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from .ray_node import NAMESPACE, EnvironmentBuilder, environment_builder_name

        self._by_node = {
            node.id: self._by_node[node.id] for node in living if node.id in self._by_node
        }
        for node in living:
            if node.id not in self._by_node:
                options = {
                    "name": environment_builder_name(node.id),
                    "namespace": NAMESPACE,
                    "num_cpus": 0,
                    "max_concurrency": 32,
                    "get_if_exists": True,
                    "scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=False),
                }
                self._by_node[node.id] = ray.remote(EnvironmentBuilder).options(**options).remote()

    def ask(self, method: str, *arguments: object) -> dict[str, Any]:
        """Call a method of every actor.

        Return the answers by node id; for an actor that failed, a description of the error.
        """
        import ray

        calls = {
            node: getattr(builder, method).remote(*arguments)
            for node, builder in self._by_node.items()
        }
        if calls:
            ray.wait(list(calls.values()), num_returns=len(calls), timeout=READY_S)
        return {node: _answer(call) for node, call in calls.items()}

    def check(self) -> dict[str, dict[str, str]]:
        """Return facts of every node.

        Raises ``UsageError`` if one lacks this package or has another version of it.
        """
        answers = self.ask("facts")
        wrong = [
            f"{node[:8]}: {facts if isinstance(facts, str) else 'has version ' + facts['vllm-regress']}"
            for node, facts in answers.items()
            if isinstance(facts, str) or facts["vllm-regress"] != __version__
        ]
        if wrong:
            raise UsageError(
                "every node of the cluster needs pytest-vllm-regress[ray] "
                f"{__version__}, in the Python that Ray runs with there:\n" + "\n".join(wrong)
            )
        return answers


def leftovers(address: str, remove: bool) -> list[dict[str, Any]]:
    """Return the leftovers of ended runs on the nodes, machine by machine.

    Raises ``UsageError`` if a node does not answer.
    """
    with connected(address):
        builders, traces = EnvironmentBuilders(), []
        for node in {node.address: node for node in living_nodes()}.values():  # one of each machine
            builders.refresh((node,))
            (answer,) = builders.ask("leftovers", remove).values()
            if isinstance(answer, str):
                raise UsageError(f"node {node.name}: {answer}")
            traces += [{"node": node.name, **trace} for trace in answer]
        return traces


def describe_error(error: BaseException, node: str) -> str:
    """Describe what an error of Ray says about the machine."""
    import ray.exceptions

    where = f"node {node}" if node else "a node"
    first = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return f"{where} ran out of memory, and Ray killed the worker"
    if isinstance(error, ray.exceptions.NodeDiedError):
        return f"{where} died"
    if isinstance(error, ray.exceptions.WorkerCrashedError):
        return f"the worker on {where} was killed"
    return f"{where}: {type(error).__name__}: {first}"


def _answer(call: Any) -> Any:
    import ray

    try:
        return ray.get(call, timeout=0)
    except ray.exceptions.GetTimeoutError:
        return f"did not answer within {READY_S:.0f} s"
    except ray.exceptions.RayError as error:
        return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1]}"
