"""The Ray cluster of this machine that may be used without being named: one whose raylet this user
or root has started.

Whoever runs a cluster can run code in what connects to it, because Ray passes objects with their
code. ``ray.init("auto")`` joins any raylet of any user, so the address is found here and passed to
Ray.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
from collections.abc import Iterator

import psutil

from ...engines.http.listeners import describe_user, on_port
from ...errors import UsageError
from ...util.text import one_line

_ADDRESS_FLAGS = ("--gcs-address", "--gcs_address")
_NAME_IT = (
    "To use it although its user can then run code as you, name it: RAY_ADDRESS, or --on HOST:PORT"
)


@dataclasses.dataclass(frozen=True)
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

    Raises ``UsageError`` if there is none.
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
