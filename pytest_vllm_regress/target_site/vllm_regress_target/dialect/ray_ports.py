"""Ports of the Rays that vLLM starts: nobody takes one between its choice and its use.

Ray looks for a port on which nobody listens and tells it its daemons, which listen seconds later. Meanwhile another Ray finds it free, too (a comment
in ``ray/_private/node.py`` names ray#8254), or the kernel gives it to an outgoing connection; then a raylet asks a stranger, or nobody, and ends.
Here the choice stays Ray's own, but what the kernel may give away is refused, and what another Ray of the user's has chosen, while its driver lives.
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
_METHOD, _REFUSED = "_get_unused_port", "allocated_ports"
_MOST = 100
"""Ports that are refused in a row."""
_LAST, _FEW = 65535, 1000


def watch() -> None:
    """Guard Ray's choice of ports in this process and those forked from it, now or when Ray is imported."""
    module = sys.modules.get(_MODULE)
    if module is not None:
        guard(module.Node)
    elif not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def guard(node: Any) -> None:
    """Have ``node``, Ray's class, choose ports that no other Ray has chosen. One that chooses in another way is left alone."""
    plain = getattr(node, _METHOD, None)
    if plain is None or _REFUSED not in inspect.signature(plain).parameters or hasattr(plain, "__wrapped__"):
        return

    @functools.wraps(plain)
    def choose(self: Any, allocated_ports: Optional[Set[int]] = None) -> int:
        refused, given_away = set(allocated_ports or ()), _given_away()
        for _ in range(_MOST):
            port: int = plain(self, refused)
            if port not in given_away and _lease(port):
                break
            refused.add(port)
        return port

    setattr(node, _METHOD, choose)


def _given_away() -> Sequence[int]:
    """The ports that the kernel gives to outgoing connections (ip_local_port_range, ip(7)); none where it would leave Ray too few above."""
    with contextlib.suppress(OSError, ValueError), open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        first, last = map(int, file.read().split())
        if last <= _LAST - _FEW:
            return range(first, last + 1)
    return ()


def _lease(port: int) -> bool:
    """Whether the port is this process's now: a lock on as much of a file as one byte, which goes with the process. Where no file can be had, too."""
    global _file
    with contextlib.suppress(OSError, KeyError):
        if _file is None:
            place = os.path.dirname(os.environ["RAY_TMPDIR"])
            path = os.path.join(place, "vllm-regress-ray-ports-{}".format(os.getuid()))
            _file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(_file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except BlockingIOError:
            return False
    return True


_file: Optional[int] = None
"""Never closed: the first close of a file ends all locks that the process has on it."""


class _Finder(importlib.abc.MetaPathFinder):
    """Guards Ray when it is imported."""

    def find_spec(
        self, name: str, path: Optional[Sequence[str]], target: Any = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            plain = spec.loader.exec_module

            def run(module: Any) -> None:
                plain(module)
                guard(module.Node)

            spec.loader.exec_module = run  # type: ignore[method-assign]
        return spec
