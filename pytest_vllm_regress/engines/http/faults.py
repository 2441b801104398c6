"""Faults between a client and a server: ``Server.fail``. The server behind them stays untouched."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypedDict, get_type_hints

from ...errors import UsageError
from ...util.validation import did_you_mean, format_value
from ..inputs.client_request import ClientRequest

_PIECES_IN_A_SECOND = 10
_BROKEN = b'data: {"id": "broken'
_END_OF_EVENT = b"\n\n"


class FaultFields(TypedDict, total=False):
    """What ``Server.fail`` takes beside the requests that it concerns.

    ``status``: answer with this status instead of the server, with an error in OpenAI's format.
    ``retry_after``: value of the header Retry-After beside it. ``delay_first_token``: seconds before
    the body. ``stall_after``: events of a stream, or bodies, after which nothing comes any more;
    the connection stays open. ``drop_after``: after which the connection is broken.
    ``malformed_after``: after which an event is cut, so that its JSON is not valid.
    ``bytes_per_second``: speed of the body. ``refuse``: seconds in which no connection is accepted,
    from now on; idle ones are closed.
    """

    status: int
    retry_after: float
    delay_first_token: float
    stall_after: int
    drop_after: int
    malformed_after: int
    bytes_per_second: float
    refuse: float


_NAMES = tuple(get_type_hints(FaultFields))


class Dropped(Exception):
    """The connection to the client is to be broken here."""


@dataclass(eq=False)
class Fault(AbstractContextManager["Fault"]):
    """A fault for the next requests, until the end of the test, or of the ``with`` block if there
    is one.

    ``times``: how many requests it concerns. ``path``: a part of the addresses that it concerns;
    empty for all. ``requests``: those that it has concerned so far.
    """

    times: int = 1
    path: str = ""
    status: int | None = None
    retry_after: float | None = None
    delay_first_token: float | None = None
    stall_after: int | None = None
    drop_after: int | None = None
    malformed_after: int | None = None
    bytes_per_second: float | None = None
    refuse: float | None = None
    requests: list[ClientRequest] = field(default_factory=list)
    has_block: bool = False

    @classmethod
    def create(cls, **given: Any) -> Fault:
        """Return a fault. Raises ``UsageError`` for an unknown name or a value that is none."""
        allowed = ("times", "path", *_NAMES)
        for name, value in given.items():
            if name not in allowed:
                raise UsageError(
                    f"fail: unknown argument {name!r}.{did_you_mean(name, allowed)} Allowed: {', '.join(allowed)}"
                )
            if name != "path" and (
                isinstance(value, bool) or not isinstance(value, int | float) or value < 0
            ):
                raise UsageError(f"fail: {name}={format_value(value)} is not a number from 0 on")
        if not set(given) & set(_NAMES):
            raise UsageError(f"fail: say what is to happen: {', '.join(_NAMES)}")
        status = given.get("status")
        if status is not None and not 200 <= status <= 599:
            raise UsageError(f"fail: status={status} is not a status from 200 to 599")
        return cls(**given)

    def concerns(self, request: ClientRequest) -> bool:
        """Whether the fault is for a request."""
        wanted = self.refuse is None and self.path in request.path
        return wanted and len(self.requests) < self.times

    def __str__(self) -> str:
        given = ((name, getattr(self, name)) for name in _NAMES)
        return ", ".join(f"{name}={value:g}" for name, value in given if value is not None)

    def __enter__(self) -> Fault:
        self.has_block = True
        return self

    def __exit__(self, *error: object) -> None:
        self.times, self.has_block = 0, False

    def body(self) -> bytes:
        """Return the body of the answer with ``status``."""
        error = {
            "message": f"injected by the test: status {self.status}",
            "type": "injected",
            "code": self.status,
        }
        return json.dumps({"object": "error", **error, "error": error}).encode()

    async def disturb(self, chunks: AsyncIterator[bytes], streamed: bool) -> AsyncIterator[bytes]:
        """Yield a body with the fault in it. Raises ``Dropped`` where the connection is to be
        broken.

        A body that is no stream of events counts as one event. vLLM puts several tokens into one
        event where the client is slow, so a stream with too few events has the fault before its
        last one.
        """
        await asyncio.sleep(self.delay_first_token or 0)
        count = 0
        async for event, is_last in _with_last(_events(chunks, streamed)):
            if _is_due(self.drop_after, count, is_last):
                raise Dropped
            if _is_due(self.stall_after, count, is_last):
                await asyncio.Event().wait()
            if _is_due(self.malformed_after, count, is_last):
                yield _BROKEN + (_END_OF_EVENT if streamed else b"")
                if not streamed:
                    return
            async for piece in self._slowly(event):
                yield piece
            count += 1

    async def _slowly(self, data: bytes) -> AsyncIterator[bytes]:
        if not self.bytes_per_second:
            yield data
            return
        size = max(1, int(self.bytes_per_second / _PIECES_IN_A_SECOND))
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            yield piece
            await asyncio.sleep(len(piece) / self.bytes_per_second)


def _is_due(after: int | None, count: int, is_last: bool) -> bool:
    return after is not None and (after == count or (is_last and after > count))


async def _events(chunks: AsyncIterator[bytes], streamed: bool) -> AsyncIterator[bytes]:
    """Yield a stream event by event, any other body as one."""
    waiting = b""
    async for chunk in chunks:
        waiting += chunk
        while streamed and _END_OF_EVENT in waiting:
            event, _, waiting = waiting.partition(_END_OF_EVENT)
            yield event + _END_OF_EVENT
    if waiting:
        yield waiting


async def _with_last(events: AsyncIterator[bytes]) -> AsyncIterator[tuple[bytes, bool]]:
    """Yield events, each as soon as it is known whether it is the last."""
    waiting: bytes | None = None
    async for event in events:
        if waiting is not None:
            yield waiting, False
        waiting = event
    if waiting is not None:
        yield waiting, True


@dataclass
class FaultQueue:
    """The faults that tests have ordered for one server. Threads may share it."""

    _faults: list[Fault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_empty(self) -> bool:
        return not self._faults

    def add(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def take(self, request: ClientRequest) -> Fault | None:
        """Return the fault for a request: the first that concerns it."""
        with self._lock:
            for fault in self._faults:
                if fault.concerns(request):
                    fault.requests.append(request)
                    return fault
        return None

    def clear(self) -> None:
        """Forget all faults but those of ``with`` blocks."""
        with self._lock:
            self._faults = [fault for fault in self._faults if fault.has_block]
