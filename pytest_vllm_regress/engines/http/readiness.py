"""Proof that a server works: the smallest request that only a working engine can answer."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import httpx

from ...errors import ChildDied, DeadlineExceeded, Part, PortTaken, RemoteError
from ...util import masking
from ...util.deadline import Deadline
from ..engine import PROMPT
from ..processes.early_exit import WaitMonitor
from .sounds import SoundRequests
from .transport import Exchange, Send

_POLL_S = 0.1
_PROBE_S = 3.0
_MAX_QUOTED = 2000
_IN_USE = re.compile(r"address already in use|Errno 98\b", re.IGNORECASE)
_log = logging.getLogger("vllm_regress.engines")

_SMALLEST: Mapping[str, tuple[tuple[str, Mapping[str, Any]], ...]] = MappingProxyType(
    {
        "generate": (("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}),),
        "embed": (("/v1/embeddings", {"input": PROMPT}),),
        "token_embed": (("/pooling", {"input": PROMPT}),),
        "classify": (
            ("/classify", {"input": PROMPT}),
            ("/pooling", {"input": PROMPT}),
        ),  # up to 0.8 only the second
        "score": (("/score", {"text_1": PROMPT, "text_2": PROMPT}),),
    }
)
"""Address and body of the smallest request for each task.

Where an address may be missing, the next one is tried.
"""


class ReadinessRequests(SoundRequests):
    """Waiting until a server works, and checking that it still does."""

    def wait_ready(self, deadline: Deadline) -> None:
        """Wait for an answer to the smallest request, because /health says nothing about the
        engine. Sets ``model``.

        With a command line of its own, a server may serve any task under any name: then /health
        must suffice.

        Nothing is sent before the server's own process listens. Raises ``PortTaken`` if another
        program listens beside it, or in its place.
        """
        _log.debug(
            "waiting up to %g s for %s at %s", deadline.allowed_s, self.child.name, self.root_url
        )
        holders = ""
        try:
            monitor = self.child.monitor_wait(deadline)
            for _ in self._attempts(monitor, deadline):
                own, others = self.listener.sockets()
                holders = self.listener.describe(others) if others else "" if own else holders
                if own and others:
                    raise PortTaken(holders, phase=deadline.phase)
                if own and self._answers(monitor, deadline):
                    return
            raise self.child.hung(
                deadline, f"the server was not ready within {deadline.allowed_s:g} s"
            )
        except (ChildDied, DeadlineExceeded) as error:
            _, others = self.listener.sockets()
            holders = self.listener.describe(others) if others else holders
            log = f"{error.args[0]}\n{error.detail}\n{error.parts.get(Part.LOG, '')}"
            if holders and (isinstance(error, DeadlineExceeded) or _IN_USE.search(log)):
                raise PortTaken(
                    holders, phase=error.phase, detail=error.detail, parts=error.parts
                ) from error
            raise

    def _answers(self, monitor: WaitMonitor, deadline: Deadline) -> bool:
        """Return whether the server answers the smallest request.

        Raises ``RemoteError`` if the engine does not.
        """
        try:
            if self.spec.command_line is not None:
                health = self._supervise(
                    lambda: self.client.get("/health", timeout=_PROBE_S), monitor, deadline
                )
                return health.is_success and bool(self.listener.check())
            models = self._supervise(
                lambda: self.client.get("/v1/models", timeout=_PROBE_S), monitor, deadline
            )
            if not models.is_success:
                return False
            self.model = models.json()["data"][0]["id"]
            response = self._send_smallest(lambda send: self._supervise(send, monitor, deadline))
            if response.is_success and _has_content(response.json()):
                return bool(self.listener.check())
        except httpx.TransportError:
            return False
        answer = masking.mask_log(f"HTTP {response.status_code} {response.text[:_MAX_QUOTED]}")
        raise self.child.failure(
            f"the first request failed: {answer}", phase="ready", answer=answer
        )

    def check(self) -> None:
        """Prove that the server still works by generating one token or pooling one prompt.

        Errors as in ``chat``.
        """
        if self.spec.command_line is not None:
            health = self._exchange(
                lambda: self.client.get("/health", timeout=None), self._deadline("request", None)
            )
            if not health.is_success:
                raise RemoteError(
                    f"/health answered with status {health.status_code}", phase="request"
                )
            return
        answer = self._json(
            self._send_smallest(lambda send: self._exchange(send, self._deadline("request", None)))
        )
        if not _has_content(answer):
            raise RemoteError(
                f"the smallest request returned no content: {answer}", phase="request"
            )

    def _send_smallest(self, exchange: Exchange) -> httpx.Response:
        """Return the response to the smallest request, from the first address that this vLLM has."""

        def send_to(path: str, body: Mapping[str, Any]) -> Send:
            return lambda: self.client.post(path, json={"model": self.model, **body}, timeout=None)

        *first, last = (send_to(path, body) for path, body in _SMALLEST[self.spec.task])
        for send in first:
            response = exchange(send)
            if response.status_code != 404:
                return response
        response = exchange(last)
        return (
            self._send_smallest_sound(exchange, response)
            if self.spec.task == "generate"
            else response
        )

    def _attempts(self, monitor: WaitMonitor, deadline: Deadline) -> Iterator[None]:
        """Yield once every ``_POLL_S`` until the deadline, or earlier when the server's processes
        change. Raises when the server has ended."""
        expired = False
        while not expired:
            expired = deadline.passed
            self.child.check_alive(deadline)
            self.child.check_early(monitor, deadline)
            yield
            self.child.pause(min(_POLL_S, deadline.left_s))


def _has_content(answer: Mapping[str, Any]) -> bool:
    return bool(answer.get("choices") or answer.get("data")) or "text" in answer
