"""The Ray cluster as the driver sees it: its address and connection, nodes and their resources,
environment builders, and descriptions of Ray's errors."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil

from .._version import __version__
from ..engines.http.listeners import describe_user, on_port
from ..errors import UsageError
from ..util.text import one_line
from .batch import Needs

READY_S = 60.0
"""Seconds that the environment builders of a cluster have to answer."""
ANSWER_S = 8.0
"""Seconds in which a cluster must answer."""
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How a client opens an HTTP/2 connection (RFC 9113, section 3.4): gRPC, which Ray speaks, is
HTTP/2. The server sends its settings, too."""
_HEADER = 9
_SETTINGS_TYPE = 4
_ADDRESS_FLAGS = ("--gcs-address", "--gcs_address")
_NAME_IT = (
    "To use it although its user can then run code as you, name it: RAY_ADDRESS, or --on HOST:PORT"
)


@dataclass(frozen=True)
class Node:
    """A living node and all its resources, in use or not."""

    id: str
    address: str
    resources: Mapping[str, float] = field(hash=False)

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


@dataclass(frozen=True)
class Raylet:
    """A running node:

    ``users`` are those of its process except this user and root, ``created`` is in seconds since
    the epoch.
    """

    pid: int
    created: float
    users: frozenset[int]
    address: str


def own_cluster() -> str:
    """Return the address of the cluster whose raylet was started last by this user or root.

    ``ray.init("auto")`` joins any raylet of any user. But whoever runs a cluster can run code in
    what connects to it, because Ray passes objects with their code: so the address is found here
    and passed to Ray. Raises ``UsageError`` if there is none.
    """
    raylets = list(_raylets())
    own = [raylet for raylet in raylets if not raylet.users]
    if own:
        address = max(own, key=lambda raylet: raylet.created).address
        _check_listener(address)
        return address
    if raylets:
        raylet, *_ = raylets
        users = ", ".join(map(describe_user, sorted(raylet.users)))
        raise UsageError(
            f"--on ray: the Ray node of this machine (process {raylet.pid}, cluster {one_line(raylet.address)[:100]}) was started by {users}, "
            f"so it is not used without being named. {_NAME_IT}"
        )
    raise UsageError(
        "--on ray: no Ray node of this user or root runs on this machine. Start a cluster (`ray start --head`), or name one by RAY_ADDRESS, "
        "--on ray://HOST or --on HOST:PORT"
    )


def _raylets() -> Iterator[Raylet]:
    """Yield the raylets of all users.

    A program with the set-user-ID bit has the arguments of who started it, so the real user counts,
    too.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            address = _gcs_address(process)
            if address:
                users = frozenset(process.uids()) - {os.getuid(), 0}
                yield Raylet(process.pid, process.create_time(), users, address)


def _gcs_address(process: psutil.Process) -> str:
    """Return the address of a raylet's cluster; empty if the process is no raylet."""
    program, *words = process.cmdline() or [""]
    if "raylet" not in (process.name(), os.path.basename(program)):
        return ""
    options = (word.partition("=") for word in words)
    return next((address for flag, _, address in options if flag in _ADDRESS_FLAGS), "")


def _check_listener(address: str) -> None:
    """Raise ``UsageError`` if the cluster's address is of this machine and another user listens
    there: the cluster has ended, but not its raylet."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or not _is_local(host.strip("[]")):
        return
    for listener in on_port(int(port)):
        if listener.uid not in (os.getuid(), 0):
            raise UsageError(
                f"--on ray: at {one_line(address)[:100]}, the address of this machine's cluster, listens {listener}. {_NAME_IT}"
            )


def _is_local(host: str) -> bool:
    addresses = {
        address.address for interface in psutil.net_if_addrs().values() for address in interface
    }
    with contextlib.suppress(OSError):
        hosts = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
        return any(address in addresses or address.startswith("127.") for address in hosts)
    return False


def check_reachable(address: str, where: str) -> None:
    """Raise ``UsageError`` if no gRPC server answers at ``where``, HOST:PORT with or without
    ray://. ``address`` is the value of --on.

    Anything without a host and a port is left to Ray. With Ray's TLS (RAY_USE_TLS) only the
    connection is tried.
    """
    endpoint = _endpoint(where)
    if endpoint is None:
        return
    problems: list[str] = [f"no answer within {ANSWER_S:g} s"]

    def try_to_reach() -> None:
        problems[:] = _problems(*endpoint)

    attempt = threading.Thread(
        target=try_to_reach, daemon=True
    )  # looking a name up has no timeout of its own
    attempt.start()
    attempt.join(ANSWER_S)
    if problems:
        raise UsageError(
            f"--on {address}: no cluster answers at {where}: {problems[0]}. "
            "Start one (`ray start --head`), or name one by RAY_ADDRESS or --on ray://HOST"
        )


def _endpoint(where: str) -> tuple[str, int] | None:
    scheme, separator, rest = where.rpartition("://")
    if separator and scheme != "ray":
        return None
    try:
        parts = urllib.parse.urlsplit(f"//{rest}")
        return (parts.hostname, parts.port) if parts.hostname and parts.port else None
    except ValueError:
        return None


def _problems(host: str, port: int) -> list[str]:
    """Return why nothing that may be Ray answers there; empty if something does."""
    try:
        with socket.create_connection((host, port), timeout=ANSWER_S) as connection:
            if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
                return []
            connection.sendall(_HELLO)
            header = b""
            while len(header) < _HEADER and (more := connection.recv(_HEADER - len(header))):
                header += more
    except TimeoutError:
        return [f"no answer within {ANSWER_S:g} s"]
    except OSError as error:
        return [error.strerror or str(error)]
    is_grpc = len(header) == _HEADER and header[3] == _SETTINGS_TYPE
    return [] if is_grpc else ["something else than Ray listens there"]


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
