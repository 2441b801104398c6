"""Requests that an engine still holds after they have ended, as its processes report after a test.

A request has ended when the front process does not know it any more. What is held for a moment only,
or by a request that still runs, is no violation.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import HeldRequests, Violation

GRACE_S = 5.0
"""An abort needs a moment to reach the core, longer on a busy machine."""
NOT_TOLD = "requests given up without an abort in the core"
"""As a container: requests that the front process does not answer any more, although the core has
not ended them, and was not told. It goes on with them until ``max_tokens``."""
_PAUSE_S = 0.05
_ANSWER_S = 2.0


@dataclass(frozen=True)
class Held:
    """What the processes of one engine hold at one moment, as ``dialect/held.py`` reads it.

    There is no violation unless a front process and a core have answered. ``missing``: what these
    processes cannot tell.
    """

    violations: frozenset[Violation]
    missing: frozenset[str]

    @classmethod
    def of(cls, parts: Iterable[Mapping[str, Any]]) -> Held:
        """Compare what the front processes (with ``live``) and the cores hold."""
        parts = list(parts)
        fronts = [part for part in parts if "live" in part]
        cores = [part for part in parts if "live" not in part]
        live = {request for front in fronts for request in front["live"]}
        known = {one for core in cores for ids in core["held"].values() for one in ids}
        told = {request for core in cores for request in core["aborted"]}
        given_up = {request for front in fronts for request in front["given_up"]}
        violations = {Violation(NOT_TOLD, request) for request in given_up - told - live}
        for core in cores:
            for name, ids in core["held"].items():
                violations |= {Violation(name, request) for request in set(ids) - live}
        if not live:
            for part in parts:
                for name, (now, start) in part["numbers"].items():
                    violations.add(Violation(name, lacking=start - now))
        if not known:
            for front in fronts:
                for name, ids in front["held"].items():
                    violations |= {Violation(name, request) for request in ids}
        missing = {name for part in parts for name in part["missing"]}
        return cls(frozenset(violations if fronts and cores else ()), frozenset(missing))


class HeldReader:
    """Asks the processes of one engine. ``folder`` has a socket for each of them.

    ``leaky``: containers of which it is known that this release keeps requests in them; there is no
    grace for them. Shared by the engines of a session.
    """

    def __init__(self, folder: Path, leaky: set[str] | None = None) -> None:
        self._folder = folder
        self._leaky = set() if leaky is None else leaky
        self._reported: set[Violation] = set()

    def read(self) -> Held:
        """Return what the processes hold now. One that has ended, or does not answer, is left out.

        The front processes are asked first: what they do not know then has ended, or is new and
        ends before the grace does.
        """
        sockets = sorted(self._folder.iterdir(), key=lambda path: not path.name.endswith("-front"))
        answers = (_ask(path) for path in sockets)
        return Held.of(answer for answer in answers if answer is not None)

    def violation(self) -> HeldRequests | None:
        """Return the error for what is still held when the grace has passed; None if nothing is that
        was not reported before."""
        lasting = settled(self.read, self._reported, self._leaky)
        self._reported |= lasting
        self._leaky |= {violation.container for violation in lasting}
        return HeldRequests(sorted(lasting)) if lasting else None


def settled(
    read: Callable[[], Held],
    reported: Set[Violation] = frozenset(),
    leaky: Set[str] = frozenset(),
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Set[Violation]:
    """Return the violations that every reading of the grace has, without those ``reported``."""
    end = clock() + GRACE_S
    held = read()
    lasting = held.violations - reported
    while {violation.container for violation in lasting} - leaky and clock() < end:
        sleep(_PAUSE_S)
        held = read()
        lasting &= held.violations
    return lasting


def _ask(path: Path) -> dict[str, Any] | None:
    chunks = []
    with contextlib.suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_S)
        folder = os.open(path.parent, os.O_PATH)  # the path itself may be too long for a socket
        try:
            connection.connect(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
        while chunk := connection.recv(65536):
            chunks.append(chunk)
        answer: dict[str, Any] | None = json.loads(b"".join(chunks))
        return answer
    return None
