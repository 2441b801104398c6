"""Ports of the Ray clusters that vLLM starts, protected from the time Ray chooses one until it
listens on it.

Ray picks a port on which nobody listens and passes it to its daemons, which listen seconds later.
In the meantime another Ray may pick the same port (ray#8254, mentioned in
``ray/_private/node.py``), or the kernel may use it for an outgoing connection. A raylet then talks
to the wrong process and exits. Here Ray still chooses, but ports of the kernel's ephemeral range
are rejected, and so are ports that another Ray of this user has chosen, as long as its driver
lives.
"""

import contextlib
import fcntl
import functools
import importlib.abc
import importlib.machinery
import inspect
import os
import sys
from typing import Any, Optional, Sequence, Set

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
    def choose(self: Any, allocated_ports: Optional[Set[int]] = None) -> int:
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
        contextlib.suppress(OSError, ValueError),
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
    with contextlib.suppress(OSError, KeyError):
        if _file is None:
            folder = os.path.dirname(os.environ["RAY_TMPDIR"])
            path = os.path.join(folder, "vllm-regress-ray-ports-{}".format(os.getuid()))
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
