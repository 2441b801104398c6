"""Requests to a server that may hang, lie or be gone.

Each has a deadline of its own, and its outcome is a word, not an exception.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import httpx

from ...engines.http.transport import BackgroundCall
from ...engines.processes import process_tree
from ...engines.processes.child import Child
from ...engines.server import Server
from ...engines.spec import EngineSpec
from ...target_site.vllm_regress_target.sim.pacing import SCHEDULER
from ...util.deadline import Deadline, wait_readable

WAIT_S = 5.0
SILENT, REFUSED, BROKEN = "no answer", "refused", "broken"
"""No answer within ``WAIT_S``; no connection; a connection that ended without an answer."""
COMPLETE, CUT, OPEN = "complete", "cut", "open"
"""A stream with all its tokens and ``[DONE]``; one that ended without ``[DONE]``; one that had not
ended by the deadline."""
_ABANDONED_S = 60.0
"""Timeout of httpx, so that the thread of a request that nobody waits for any more ends."""


def completion(server: Server, tokens: int, **fields: Any) -> dict[str, Any]:
    """Return the body of a request for this number of tokens."""
    return {
        "model": server.model,
        "prompt": "Hello",
        "max_tokens": tokens,
        "ignore_eos": True,
        **fields,
    }


def ask(
    server: Server, path: str, *, tokens: int | None = None, wait_s: float = WAIT_S, **fields: Any
) -> str:
    """Return the status of the answer as text, or why there is none.

    ``tokens``: request a completion, with these ``fields``, instead of sending a GET.
    """

    def send() -> httpx.Response:
        if tokens is None:
            return server.client.get(path, timeout=_ABANDONED_S)
        return server.client.post(
            path, json=completion(server, tokens, **fields), timeout=_ABANDONED_S
        )

    with BackgroundCall(send) as call:
        if not wait_readable(Deadline.after("request", wait_s), call):
            return SILENT
    try:
        return str(call.result().status_code)
    except httpx.ConnectError:
        return REFUSED
    except httpx.TransportError:
        return BROKEN


class Stream:
    """A streamed completion, read by a thread of its own from the moment it is made. ``fields`` of
    its request replace the usual ones.

    ``received``: number of chunks with text so far. ``text``: what they add up to.
    """

    def __init__(self, server: Server, tokens: int, **fields: Any) -> None:
        self.received = 0
        self.text = ""
        self._fields = fields
        self._aborted = threading.Event()
        self._server = server
        self._tokens = tokens
        self._begun = threading.Event()
        self._call = BackgroundCall(self._read)

    def wait_for_first(self, seconds: float) -> bool:
        """Wait until a token has arrived.

        Return False if the stream ends or the time passes first.
        """
        return self._begun.wait(seconds) and self.received > 0

    def outcome(self, seconds: float) -> str:
        """Wait until the stream ends and return how:

        ``COMPLETE``, ``CUT``, ``OPEN``, or in words what it ended with instead.
        """
        if not wait_readable(Deadline.after("request", seconds), self._call):
            return OPEN
        return self._call.result()

    def abort(self) -> None:
        """Close the connection when the next chunk arrives. The outcome is then ``CUT``."""
        self._aborted.set()

    def _read(self) -> str:
        try:
            return self._outcome()
        finally:
            self._begun.set()

    def _outcome(self) -> str:
        reason: object = None
        try:
            body = completion(self._server, self._tokens, stream=True, **self._fields)
            with self._server.client.stream(
                "POST", "/v1/completions", json=body, timeout=_ABANDONED_S
            ) as response:
                if response.is_error:
                    return f"HTTP {response.status_code}"
                for line in response.iter_lines():
                    if self._aborted.is_set():
                        return CUT
                    if line == "data: [DONE]":
                        return COMPLETE if reason == "length" else f"ended as {reason}"
                    chunk = _chunk(line)
                    if chunk is not None and "choices" not in chunk:
                        return "error"
                    for choice in chunk["choices"] if chunk else ():
                        reason = choice.get("finish_reason") or reason
                        self.text += choice.get("text") or ""
                        self.received += 1
                        self._begun.set()
        except httpx.TransportError:
            pass
        return CUT


def _chunk(line: str) -> dict[str, Any] | None:
    """Return the chunk of a line of the stream; None for an empty line.

    Anything but a JSON object counts as a chunk without choices.
    """
    if not line.startswith("data: "):
        return None
    try:
        value = json.loads(line.removeprefix("data: "))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


RUNS = "runs"
DRAIN_S = 30
"""``--shutdown-timeout`` of a server that drains: more than the longest stream takes."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def paced(extra: Mapping[str, Any] = _NOTHING, **fields: Any) -> EngineSpec:
    """Return the spec of a V1 engine whose steps take 50 ms, so that a stream surely runs when
    something happens."""
    return EngineSpec.create(generation="V1", extra={"scheduler_cls": SCHEDULER, **extra}, **fields)


def wait_for_end(child: Child, seconds: float) -> None:
    """Wait until the front process has ended, but no longer than ``seconds``."""
    deadline = Deadline.after("stop", seconds)
    while child.alive and not deadline.passed:
        child.pause(deadline.left_s)


def describe_end(server: Server) -> str:
    """Return how the front process ended, or ``RUNS`` if it is alive."""
    child = server.child
    if child.alive:
        return RUNS
    return (
        "ended" if child.exit_status is None else process_tree.describe_exit_code(child.exit_status)
    )
