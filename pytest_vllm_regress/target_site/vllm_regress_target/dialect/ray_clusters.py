"""The Ray clusters that engines start: their ports, and a cluster of two nodes on this machine.

Ray picks a port on which nobody listens and passes it to its daemons, which listen seconds later.
In the meantime another Ray may pick the same port (ray#8254, mentioned in
``ray/_private/node.py``), or the kernel may use it for an outgoing connection. A raylet then talks
to the wrong process and exits. Here Ray still chooses (``watch``), but ports of the kernel's
ephemeral range are rejected, and so are ports that another Ray of this user has chosen, as long as
its driver lives.

The executor ``ray-2-nodes`` is a value of the axis ``executor`` and not a number of nodes beside
it, because the other executors have one node. vLLM forks its engine core from the engine's process,
which must not have Ray's threads by then; therefore a separate process holds the nodes, and ends
them with the engine's process.
"""

import fcntl
import functools
import importlib.abc
import importlib.machinery
import inspect
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import util
from typing import Any, Optional

from ..nanny import become_subreaper, end_descendants

EXECUTOR = "ray-2-nodes"
"""The name of this executor in an engine spec."""
ADDRESSES = ("127.0.0.2", "127.0.0.1")
"""Addresses of the nodes, the head first.

Ray's driver joins the node that started last, so the engine runs there.
"""
_END_S = 5.0
_MODULE = "ray._private.node"
_METHOD, _EXCLUDED = "_get_unused_port", "allocated_ports"
_MAX_ATTEMPTS = 100
_LAST_PORT, _MIN_LEFT = 65535, 1000


def watch() -> None:
    """Protect Ray's choice of ports in this process and its forks, now or as soon as Ray is
    imported."""
    module = sys.modules.get(_MODULE)
    if module is not None:
        guard(module.Node)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def guard(node: Any) -> None:
    """Make Ray's class ``node`` choose ports that no other Ray has chosen.

    A class that chooses in another way is not changed.
    """
    original = getattr(node, _METHOD, None)
    if (
        original is None
        or _EXCLUDED not in inspect.signature(original).parameters
        or hasattr(original, "__wrapped__")
    ):
        return

    @functools.wraps(original)
    def choose(self: Any, allocated_ports: Optional[set[int]] = None) -> int:
        excluded, ephemeral = set(allocated_ports or ()), _ephemeral_ports()
        for _ in range(_MAX_ATTEMPTS):
            port: int = original(self, excluded)
            if port not in ephemeral and _lease(port):
                break
            excluded.add(port)
        return port

    setattr(node, _METHOD, choose)


def _ephemeral_ports() -> Sequence[int]:
    """Return the ports that the kernel uses for outgoing connections (ip_local_port_range, ip(7));
    empty if too few would be left above them."""
    with (
        suppress(OSError, ValueError),
        open("/proc/sys/net/ipv4/ip_local_port_range") as file,
    ):
        first, last = map(int, file.read().split())
        if last <= _LAST_PORT - _MIN_LEFT:
            return range(first, last + 1)
    return ()


def _lease(port: int) -> bool:
    """Lock the port for this process by one byte of a file; the lock ends with the process. Return
    False if another process has it.

    Returns True without a lock if the file cannot be opened.
    """
    global _file
    with suppress(OSError, KeyError):
        if _file is None:
            folder = os.path.dirname(os.environ["RAY_TMPDIR"])
            path = os.path.join(folder, f"vllm-regress-ray-ports-{os.getuid()}")
            _file = os.open(
                path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600
            )
        try:
            fcntl.lockf(_file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except BlockingIOError:
            return False
    return True


_file: Optional[int] = None
"""The lock file.

It is never closed, because closing a file releases all locks that the process has on it.
"""


class _Finder(importlib.abc.MetaPathFinder):
    """Applies ``guard`` when Ray is imported."""

    def find_spec(
        self, name: str, path: Optional[Sequence[str]], target: Any = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            original = spec.loader.exec_module

            def run(module: Any) -> None:
                original(module)
                guard(module.Node)

            spec.loader.exec_module = run  # type: ignore[method-assign]
        return spec


def start(gpus: int) -> dict[str, str]:
    """Start both nodes, each with this many pretended GPUs, until this process ends.

    Returns the variables by which vLLM joins them.
    """
    program = f"from {__name__} import hold; hold({gpus})"
    holder = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    address = holder.stdout.readline().strip()  # the controller's deadline bounds this wait
    if not address:
        raise RuntimeError(
            f"a Ray cluster of two nodes could not be started: its process exited with {holder.wait()}"
        )
    util.Finalize(None, _end, args=(holder,), exitpriority=0)
    return {"RAY_ADDRESS": address, "VLLM_HOST_IP": ADDRESSES[-1]}


def _end(holder: "subprocess.Popen[str]") -> None:
    """Terminate the holder.

    Closing its input is not enough, because forks of this process may still have it open.
    """
    holder.terminate()
    with suppress(subprocess.TimeoutExpired):
        holder.wait(_END_S)


def hold(gpus: int) -> None:
    """Hold the nodes until this process's input is closed or SIGTERM arrives, for which Ray has a
    handler. If this process is killed, the kernel ends
    Ray's daemons."""
    watch()
    from ray.cluster_utils import Cluster

    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray would limit the pretended GPUs to these
    become_subreaper()
    try:
        cluster = Cluster()
        for address in ADDRESSES:
            cluster.add_node(
                node_ip_address=address,
                num_gpus=gpus,
                include_dashboard=False,
                env_vars={"VLLM_HOST_IP": address},
            )
        # Without this another engine of the run would join this cluster instead of starting its own
        # Ray.
        os.unlink(os.path.join(os.environ["RAY_TMPDIR"], "ray", "ray_current_cluster"))
        print(cluster.address, flush=True)
        sys.stdin.read()
    finally:
        end_descendants()  # Ray ends its daemons, but a worker may outlive its raylet
