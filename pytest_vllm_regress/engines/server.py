"""``vllm serve`` in a child process, on the loopback interface and with a random API key."""

from __future__ import annotations

import logging
import re
import secrets
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil

from ..errors import (
    ChildDied,
    ChildError,
    DeadlineExceeded,
    Part,
    PortTaken,
    RemoteError,
    Unsupported,
)
from ..util import masking
from ..util.deadline import Deadline
from .checkpoints.models import filled
from .engine import PROMPT
from .http.requests import (
    MaintenanceRequests,
    OpenAIClients,
    PoolingRequests,
    SoundRequests,
    TextRequests,
)
from .http.transport import Exchange, Send
from .ports import HOST, PortLease
from .processes import process_tree
from .processes.child_processes import Leftover
from .processes.early_exit import Wait
from .running import Launch

_log = logging.getLogger("vllm_regress.engines")

_UNSUPPORTED = re.compile(
    r"VLLM_USE_V1=1 is not supported with [^\n]+?(?=\.(?:[\s;]|$))|[\w -]+ is not supported on current platform"
)
"""Errors in the log of a server that ended because this vLLM supports something in V0 only, or not
on this platform."""

_OF_THE_DEVICE = re.compile(r"\bdevice type\b|\bon current platform\b|\bCompute Capability\b")
_POLL_S = 0.1
_ANSWER_S = 3.0
_MAX_QUOTED = 2000
_IN_USE = re.compile(r"address already in use|Errno 98\b", re.IGNORECASE)
_SMALLEST: Mapping[str, Mapping[str, Mapping[str, Any]]] = tomllib.loads(
    Path(__file__).with_name("http").joinpath("smallest.toml").read_text("utf-8")
)


class Server(TextRequests, PoolingRequests, SoundRequests, MaintenanceRequests, OpenAIClients):
    """A running server. Tests get it from the fixture ``vllm_server``."""

    def engine_processes(self) -> list[psutil.Process]:
        """Return the engine's processes below the API server: the engine core first, then its
        workers, without multiprocessing's helpers."""
        return [
            process
            for process in self.child.processes()
            if process.pid != self.child.pid and not process_tree.is_helper(process)
        ]

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

        def is_ready() -> bool:
            nonlocal holders
            own, others = self.listener.sockets()
            holders = self.listener.describe(others) if others else "" if own else holders
            if own and others:
                raise PortTaken(holders, phase=deadline.phase)
            return bool(own) and self._answers(wait)

        try:
            wait = self.child.wait(deadline)
            if wait.until(is_ready, ended="it ended", at_most_s=_POLL_S):
                return
            raise self.child.failures.hung(
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

    def _answers(self, wait: Wait) -> bool:
        """Return whether the server answers the smallest request.

        Raises ``RemoteError`` if the engine does not.
        """
        try:
            if self.spec.command_line is not None:
                health = self._supervise(
                    lambda: self.client.get("/health", timeout=_ANSWER_S), wait
                )
                return health.is_success and bool(self.listener.check())
            models = self._supervise(lambda: self.client.get("/v1/models", timeout=_ANSWER_S), wait)
            if not models.is_success:
                return False
            self.model = models.json()["data"][0]["id"]
            response = self._send_smallest(lambda send: self._supervise(send, wait))
            if response.is_success and _has_content(response.json()):
                return bool(self.listener.check())
        except httpx.TransportError:
            return False
        answer = masking.mask_log(f"HTTP {response.status_code} {response.text[:_MAX_QUOTED]}")
        raise self.child.failures.error(
            f"the first request failed: {answer}", phase="ready", answer=answer
        )

    def check(self) -> None:
        """Prove that the server still works by generating one token or pooling one prompt.

        Errors as in ``chat``.
        """
        if self.spec.command_line is not None:
            health = self.get("/health")
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
            filled_in = filled({"model": self.model, **body}, {"prompt": PROMPT}, {})
            return lambda: self.client.post(path, json=filled_in, timeout=None)

        *first, last = (send_to(path, body) for path, body in _SMALLEST[self.spec.task].items())
        for send in first:
            response = exchange(send)
            if response.status_code != 404:
                return response
        response = exchange(last)
        if self.spec.task == "generate":
            return self._send_smallest_sound(exchange, response)
        return response

    def stop(self, timeout: float | None = None) -> tuple[Leftover, ...]:
        """Send TERM and wait for vLLM's own shutdown.

        Returns what the server left behind, which has been removed.
        """
        self.client.close()
        self._close_openai()
        if self._gateway is not None:
            self._gateway.close()
        try:
            return self.child.stop(self._deadline("stop", timeout), by_signal=True)
        finally:
            self._port.release()


def _has_content(answer: Mapping[str, Any]) -> bool:
    return bool(answer.get("choices") or answer.get("data")) or "text" in answer


def start_server(launch: Launch, port: PortLease) -> Server:
    """Start a server and wait until it is ready. If that fails, the child is killed and the port
    released before the error is raised.

    A server with a command line of its own gets no key: its tests send requests without one.
    """
    child = launch.child
    key = masking.register(secrets.token_hex(16)) if launch.spec.command_line is None else ""
    server = None
    try:
        plan = launch.ask("serve", host=HOST, port=port.number, api_key=key)
        _log.info("%s runs %s", child.name, " ".join(plan["argv"]))
        server = Server(launch, port, key, plan)
        server.wait_ready(launch.deadline_for("ready", launch.timeout))
        child.adopt_engine()
    except BaseException as error:
        if isinstance(error, ChildError) and not error.detail:
            error.detail = child.failures.dossier(f"{child.name} failed to become ready")
        if server is not None:
            server.client.close()
        child.kill()
        port.release()
        unsupported = (
            _UNSUPPORTED.search(str(error.args[0])) if isinstance(error, ChildDied) else None
        )
        if unsupported:
            # What vLLM refuses because of the device says nothing about the release.
            of_the_device = _OF_THE_DEVICE.search(unsupported.group())
            device = launch.request["device"] if of_the_device else ""
            raise Unsupported(unsupported.group(), refused_by="this vLLM", device=device) from error
        raise
    return server
