"""HTTP with a server that a child process holds: requests under deadlines, and what their failures are taken for."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import httpx

from ...dialogue.script import ScriptWatch
from ...errors import Unsupported
from ...processes.child import Child
from ...util import masking
from ...util.deadline import Deadline, DeadlineFor
from .. import health as watcher
from ..ports import HOST, PortLease
from ..schema_filter import SchemaFilter
from ..spec import EngineSpec
from .aside import Aside
from .metrics import Metrics

T = TypeVar("T")
_OTHER_MODEL = re.compile(r"model does not support [^\"]+ API")
"""What vLLM says at an address that it has, but not for a model of this task."""
Send = Callable[[float], httpx.Response]
"""Sends a request that may take so many seconds."""
Exchange = Callable[[Send], httpx.Response]
"""Has it sent, and looks after what must be looked after meanwhile."""


class Transport:
    """What every request over HTTP needs. ``client`` is httpx's own, past deadlines and dossiers."""

    def __init__(
        self,
        child: Child,
        spec: EngineSpec,
        port: PortLease,
        key: str,
        deadline_for: DeadlineFor,
        scripts: ScriptWatch,
    ) -> None:
        self.child = child
        self.spec = spec
        self.api_key = key
        self.notes: tuple[str, ...] = ()
        self.argv: tuple[str, ...] = ()
        self.model = ""
        self.model_path = Path()
        self.schemas = SchemaFilter()
        self.scripts = scripts
        self._port = port
        self._deadline = deadline_for
        self.root_url = f"http://{HOST}:{port.number}"
        # A connection for each request: uvicorn closes one behind a status 500 that a broken handler gave, and the next request would break.
        alone = httpx.Limits(max_keepalive_connections=0)
        headers = {"Authorization": f"Bearer {key}"}
        self.client = httpx.Client(base_url=self.root_url, headers=headers, trust_env=False, limits=alone)

    @property
    def base_url(self) -> str:
        """The OpenAI-compatible base URL."""
        return self.root_url + "/v1"

    def async_client(self, *, timeout: float | None = None) -> httpx.AsyncClient:
        """A client of one's own for asynchronous code, ``async with server.async_client() as client``: it belongs to the event loop that uses it.

        ``timeout`` in seconds for each request (default: the request phase's). What it asks goes past deadlines and dossiers.
        """
        seconds = self._deadline("request", timeout).allowed_s
        headers = dict(self.client.headers)
        return httpx.AsyncClient(base_url=self.root_url, headers=headers, trust_env=False, timeout=seconds)

    def post(self, path: str, body: Mapping[str, Any], *, timeout: float | None = None) -> httpx.Response:
        """POST JSON; any HTTP status is returned. A missing answer is ``DeadlineExceeded``, a dead server ``ChildDied``."""
        self.scripts.admit(body)
        sent = self.schemas.apply(body)
        return self._exchange(
            lambda seconds: self.client.post(path, json=sent, timeout=seconds), self._deadline("request", timeout)
        )

    def get(self, path: str, *, timeout: float | None = None) -> httpx.Response:
        """GET; as ``post``."""
        return self._exchange(
            lambda seconds: self.client.get(path, timeout=seconds), self._deadline("request", timeout)
        )

    def metrics(self, *, timeout: float | None = None) -> Metrics:
        """What the server counts (its /metrics). Errors as of ``chat``."""
        response = self.get("/metrics", timeout=timeout)
        self._done(response)
        return Metrics.parse(response.text)

    def post_all(
        self, path: str, bodies: Sequence[Mapping[str, Any]], *, timeout: float | None = None
    ) -> list[httpx.Response]:
        """POST every body at once, each over a connection of its own; the answers in the order of the bodies. Errors as of ``post``."""
        for body in bodies:
            self.scripts.admit(body)
        sent = [self.schemas.apply(body) for body in bodies]

        async def ask(seconds: float) -> list[httpx.Response]:
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(
                base_url=self.root_url, headers=self.client.headers, trust_env=False, timeout=seconds, limits=limits
            ) as client:
                return await asyncio.gather(*(client.post(path, json=body) for body in sent))

        return self._exchange(lambda seconds: asyncio.run(ask(seconds)), self._deadline("request", timeout))

    def health(self) -> watcher.Health:
        """Whether the server is dead, stuck, slow or idle, in a few seconds; ``text`` says how that was told."""
        return watcher.look(lambda path, seconds: self.client.get(path, timeout=seconds), self.child.pause)

    def _exchange(self, ask: Callable[[float], T], deadline: Deadline) -> T:
        vigil = self.child.vigil_over(deadline)
        with Aside(lambda: ask(max(0.1, deadline.left_s))) as call:
            ended = self.child.wait_for(call, vigil, deadline)
        try:
            answer = call.result() if ended else self._silent(deadline)
        except httpx.TimeoutException:
            self._silent(deadline)
        except httpx.TransportError as error:
            self.child.check_alive(deadline)
            raise self.child.failure(f"the server broke the connection: {error!r}", phase=deadline.phase) from None
        self.child.replied(deadline.phase)
        self.scripts.check()
        return answer

    def _silent(self, deadline: Deadline) -> NoReturn:
        health = self.health().text
        why = f"no HTTP answer within {deadline.allowed_s:g} s; {health}"
        raise self.child.hung(deadline, why, answer=f"no HTTP answer: {health}") from None

    def _streamed(self, path: str, timeout: float | None, **sent: Any) -> tuple[httpx.Response, list[str]]:
        """POST, and the lines of the answer; none of an error's, whose body is read."""

        def read(seconds: float) -> tuple[httpx.Response, list[str]]:
            with self.client.stream("POST", path, timeout=seconds, **sent) as response:
                if response.is_error:
                    response.read()
                    return response, []
                return response, list(response.iter_lines())

        return self._exchange(read, self._deadline("request", timeout))

    def _events(self, lines: Sequence[str]) -> list[dict[str, Any]]:
        """The chunks of a stream, which must end with ``[DONE]``; an error in it is ``RemoteError``."""
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        if not data or data[-1] != "[DONE]":
            said = f"the stream ended without [DONE]; last line: {lines[-1] if lines else ''!r}"
            raise self.child.failure(said, phase="request", answer="\n".join(lines[-20:]))
        chunks: list[dict[str, Any]] = [json.loads(each) for each in data[:-1]]
        for chunk in chunks:
            if "choices" not in chunk:
                said = masking.mask(json.dumps(chunk)[:4000])
                raise self.child.failure(f"the stream brought an error: {said}", phase="request", answer=said)
        return chunks

    def _asked(
        self, path: str, body: Mapping[str, Any], timeout: float | None, *, tasks: Collection[str] = ()
    ) -> dict[str, Any]:
        """The JSON that ``path`` answers. ``Unsupported`` where this vLLM has no such address; or says that it has it for other models, although the
        server's task is one of ``tasks``, those that some version serves there."""
        response = self.post(path, {"model": self.model, **body}, timeout=timeout)
        if response.status_code == 404:
            raise Unsupported(f"it serves no {path}", refused_by="this vLLM (HTTP 404)")
        refused = _OTHER_MODEL.search(error_in(response))
        if refused and self.spec.task in tasks:
            why = f"{path} for task={self.spec.task!r}: the {refused.group()}"
            raise Unsupported(why, refused_by=f"this vLLM (HTTP {response.status_code})")
        return self._json(response)

    def _json(self, response: httpx.Response) -> dict[str, Any]:
        """The answer, which is no error: vLLM now and then sends one with the status of success."""
        self._done(response)
        if error := error_in(response):
            said = f"HTTP {response.status_code}, but an error: {masking.mask(error[:4000])}"
            raise self.child.failure(said, phase="request", type_name="http.error", answer=said)
        value = response.json()
        assert isinstance(value, dict)
        return value

    def _done(self, response: httpx.Response) -> None:
        if response.is_error:
            message = f"HTTP {response.status_code}: {masking.mask(response.text[:4000])}"
            # the body of a 5xx seldom says what went wrong
            ours = response.status_code >= 500
            log = self.child.log_tail() if ours else ""
            status = f"http.{response.status_code}"
            raise self.child.failure(
                message, phase="request", detail=log, type_name=status, died=ours and self._has_died(), answer=message
            )

    def _has_died(self) -> bool:
        """Whether the server says that its engine is dead, or is gone itself: sooner than its processes show it. Silence says nothing."""
        try:
            return self.client.get("/health", timeout=watcher.LOOK_S).is_server_error
        except httpx.TimeoutException:
            return False
        except httpx.TransportError:
            return True


def error_in(response: httpx.Response) -> str:
    """The body, where it is an error: by its status, or as vLLM words errors (up to 0.9 flat, later below ``error``). Else nothing."""
    if response.is_error:
        return response.text
    value = response.json()
    if not isinstance(value, dict):
        return ""
    kind, below = value.get("object"), value.get("error")
    return response.text if kind == "error" or (kind is None and isinstance(below, dict)) else ""
