"""What an engine still holds of requests that have ended: asked of its processes after a test.

A request has ended when the front process does not know it any more. What is held for a moment only,
or by a request that still runs, is no violation.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import HeldRequests, Violation

GRACE_S = 5.0
"""An abort needs a moment to reach the core, longer on a busy machine."""
_PAUSE_S = 0.05
_ANSWER_S = 2.0


@dataclass(frozen=True)
class Held:
    """What the processes of one engine hold at one moment, as ``dialect/held.py`` reads it.

    ``readable``: a front process and a core have answered.
    """

    readable: bool
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
        violations = set[Violation]()
        for core in cores:
            for name, ids in core["held"].items():
                if left := set(ids) - live:
                    violations.add(Violation(name, len(left), tuple(sorted(left))))
            if not live:
                for name, (now, start) in core["numbers"].items():
                    violations.add(Violation(name, start - now))
        if not known:
            for front in fronts:
                for name, ids in front["held"].items():
                    violations.add(Violation(name, len(ids), tuple(sorted(ids))))
        missing = {name for part in parts for name in part["missing"]}
        return cls(bool(fronts and cores), frozenset(violations), frozenset(missing))


class HeldReader:
    """Asks the processes of one engine. ``folder`` has a socket for each of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> Held:
        """Return what the processes hold now. One that has ended, or does not answer, is left out.

        The front processes are asked first: a request that is sent then is not taken for one that
        has ended twice in a row.
        """
        sockets = sorted(self._folder.iterdir(), key=lambda path: not path.name.endswith("-front"))
        answers = (_ask(path) for path in sockets)
        return Held.of(answer for answer in answers if answer is not None)

    def violation(self) -> HeldRequests | None:
        """Return the error for what is still held when the grace has passed; None if nothing is."""
        return settled(self.read)


def settled(
    read: Callable[[], Held],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> HeldRequests | None:
    """Return the error for violations that every reading of the grace has; None if there are none."""
    end = clock() + GRACE_S
    held = read()
    lasting = held.violations
    while held.readable and lasting and clock() < end:
        sleep(_PAUSE_S)
        held = read()
        lasting &= held.violations
    return HeldRequests(sorted(lasting)) if held.readable and lasting else None


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
