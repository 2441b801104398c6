"""The cluster as the driver sees it: connecting, its nodes and what they have, their keepers, and Ray's errors in words."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ..._version import __version__
from ...errors import UsageError
from ..cell import Needs

READY_S = 60.0
"""For the keepers of a cluster to say what their nodes are."""


@dataclasses.dataclass(frozen=True)
class Node:
    """A living node and all it has, busy or not."""

    id: str
    address: str
    resources: Mapping[str, float] = dataclasses.field(hash=False)

    @property
    def name(self) -> str:
        """As results name it."""
        return f"{self.address}/{self.id[:8]}"

    def fits(self, needs: Needs) -> int:
        """How many requests with such needs fit at a time."""
        wanted = {"CPU": needs.cores, "GPU": needs.gpus, "memory": needs.memory_bytes}
        return int(min(self.resources.get(name, 0.0) // amount for name, amount in wanted.items() if amount))


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """A connection to the cluster: ``ray`` (RAY_ADDRESS, else the one on this machine), ``ray://HOST[:PORT]`` or ``HOST:PORT``.

    Raises ``UsageError`` where there is no Ray or no cluster. A connection that is there is used, and left.
    """
    try:
        import ray
    except ImportError:
        raise UsageError("--on: Ray is not installed: pip install 'pytest-vllm-regress[ray]'") from None
    from .node import NAMESPACE

    if ray.is_initialized():
        yield
        return
    where = os.environ.get("RAY_ADDRESS", "auto") if address == "ray" else address
    if where.startswith("ray://") and ":" not in where.removeprefix("ray://"):
        where += ":10001"
    try:
        ray.init(where, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise UsageError(
            f"--on {address}: no cluster answers at {where}: {str(error).splitlines()[0] if str(error) else error!r}. "
            "Start one (`ray start --head`), or name one by RAY_ADDRESS or --on ray://HOST"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def nodes() -> tuple[Node, ...]:
    """The nodes that live."""
    import ray

    return tuple(
        Node(each["NodeID"], each["NodeManagerAddress"], each["Resources"]) for each in ray.nodes() if each["Alive"]
    )


class Keepers:
    """One on every node, as long as the connection lasts."""

    def __init__(self) -> None:
        self._by_node: dict[str, Any] = {}

    def refresh(self, living: tuple[Node, ...]) -> None:
        """Start one on each node that has none, and forget those of nodes that are gone."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from .node import NAMESPACE, Keeper, keeper_name

        self._by_node = {node.id: self._by_node[node.id] for node in living if node.id in self._by_node}
        for node in living:
            if node.id not in self._by_node:
                options = {
                    "name": keeper_name(node.id),
                    "namespace": NAMESPACE,
                    "num_cpus": 0,
                    "max_concurrency": 32,
                    "get_if_exists": True,
                    "scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=False),
                }
                self._by_node[node.id] = ray.remote(Keeper).options(**options).remote()

    def ask(self, method: str, *arguments: object) -> dict[str, Any]:
        """What each keeper answers, by the node's id; what went wrong with one is told as a text."""
        import ray

        asked = {node: getattr(each, method).remote(*arguments) for node, each in self._by_node.items()}
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=READY_S) if asked else None
        return {node: _answer(reference) for node, reference in asked.items()}

    def check(self) -> dict[str, dict[str, str]]:
        """Facts of every node. Raises ``UsageError`` where one lacks this package, or has another version of it."""
        found = self.ask("facts")
        wrong = [
            f"{node[:8]}: {facts if isinstance(facts, str) else 'has version ' + facts['vllm-regress']}"
            for node, facts in found.items()
            if isinstance(facts, str) or facts["vllm-regress"] != __version__
        ]
        if wrong:
            raise UsageError(
                "every node of the cluster needs pytest-vllm-regress[ray] "
                f"{__version__}, in the Python that Ray runs with there:\n" + "\n".join(wrong)
            )
        return found


def leftovers(address: str, remove: bool) -> list[dict[str, Any]]:
    """What runs that have ended left on the nodes, one machine after the other. Raises ``UsageError`` where a node does not say."""
    with connected(address):
        keepers, found = Keepers(), []
        living = nodes()
        for node in {each.address: each for each in living}.values():  # several nodes on one machine have one answer
            keepers.refresh((node,))
            (answer,) = keepers.ask("leftovers", remove).values()
            if isinstance(answer, str):
                raise UsageError(f"node {node.name}: {answer}")
            found += [{"node": node.name, **each} for each in answer]
        return found


def in_words(error: BaseException, node: str) -> str:
    """What Ray's error says of the machine."""
    import ray.exceptions as theirs

    where = f"node {node}" if node else "a node"
    first = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, theirs.OutOfMemoryError):
        return f"{where} ran out of memory, and Ray killed the worker"
    if isinstance(error, theirs.NodeDiedError):
        return f"{where} died"
    if isinstance(error, theirs.WorkerCrashedError):
        return f"the worker on {where} was killed"
    return f"{where}: {type(error).__name__}: {first}"


def _answer(reference: Any) -> Any:
    import ray

    try:
        return ray.get(reference, timeout=0)
    except ray.exceptions.GetTimeoutError:
        return f"did not answer within {READY_S:.0f} s"
    except ray.exceptions.RayError as error:
        return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1]}"
