"""HTTP requests to a server in a child process: their deadlines, and the errors that their failures
are reported as."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, NoReturn, TypeVar, Unpack

import httpx

from ...errors import PortTaken, Unsupported
from ...util.deadline import Deadline
from ...util.masking import Masked, mask_log
from ..inputs.formats import CallFormat
from ..inputs.script_rules import Answers, ScriptBook, ScriptRule
from ..ports import HOST, PortLease
from ..processes.child import Loan
from ..processes.early_exit import Wait
from ..running import Launch, Running, SchemaFilter
from .faults import Fault, FaultFields
from .gateway import Gateway
from .health import (
    DEAD,
    HEALTH_TIMEOUT_S,
    Health,
    Metrics,
    check_health,
    waited_for_processor,
)
from .listeners import NotOurServer, OwnListener

T = TypeVar("T")
RANK_HEADER = "X-data-parallel-rank"
AUDIO_EXTRA = "vllm[audio]"
"""What must be installed to read audio files. vLLM's error messages name it."""
ENDING_S = 30.0
"""Seconds that a server gets to exit after it has closed its port.

After that it counts as hanging.
"""
_PAUSE_S = 0.05
_MAX_ANSWER = 4000
"""Characters of an answer that an error quotes."""
_OTHER_MODEL = re.compile(r"model does not support [^\"]+ API")
"""vLLM's answer at an address that it has, but not for models of this task."""
Send = Callable[[], httpx.Response]
"""Sends a request without a timeout of its own."""
Exchange = Callable[[Send], httpx.Response]
"""Sends a request and supervises it."""


class BackgroundCall(Generic[T]):
    """A blocking call in a thread of its own, started at once. ``fileno`` becomes readable when the
    call has ended.

    The waiting thread can then check the deadline, the processes and the lifeline as in every other
    wait. So an answer that arrives in pieces but never ends is a hang, too. The thread is a daemon
    and does not keep this process alive.
    """

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._future: Future[T] = Future()
        self._ended, end = os.pipe()
        threading.Thread(target=self._run, args=(end,), daemon=True).start()

    def __enter__(self) -> BackgroundCall[T]:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._ended)

    def fileno(self) -> int:
        return self._ended

    def result(self) -> T:
        """Return what the call returned, or raise what it raised.

        Call it only when the call has ended.
        """
        return self._future.result()

    def _run(self, end: int) -> None:
        try:
            self._future.set_result(self._call())
        except BaseException as error:
            self._future.set_exception(error)
        finally:
            os.close(end)


class Transport(Running):
    """Base of all requests over HTTP.

    ``client`` is an ordinary httpx client, without the harness's deadlines and dossiers; its
    requests, to ``root_url``, go to the server itself, past scripts and faults. ``plan``: how the
    target started the server.
    """

    front = "serve"
    front_role = "server"

    def __init__(
        self,
        launch: Launch,
        port: PortLease,
        key: str,
        plan: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(launch)
        self.api_key = key
        self.notes: tuple[str, ...] = tuple(plan.get("notes", ()))
        self.argv: tuple[str, ...] = tuple(plan.get("argv", ()))
        self.model = ""
        self.model_path = Path(str(launch.request.get("model_path", "")))
        # The package without which vLLM reads no sound files; empty if it can read them.
        self.sound_needs = str(plan.get("sound_needs", ""))
        self._call_format = CallFormat(
            str(plan.get("tool_parser") or ""), bool(plan.get("reads_every_call"))
        )
        self._port = port
        self._gateway: Gateway | None = None
        self.root_url = f"http://{HOST}:{port.number}"
        self.listener = OwnListener(port.number, lambda: self.child.processes())
        # One connection per request: uvicorn closes a connection after a broken handler's status
        # 500, and the next request on it would fail.
        limits = httpx.Limits(max_keepalive_connections=0)
        self.client = httpx.Client(
            **self._addressed(self.listener.guard, self.root_url), limits=limits
        )

    def _addressed(self, guard: Callable[..., Any], url: str) -> dict[str, Any]:
        """Return what every client has: an address, the server's key, and a ``guard`` of its
        connections. Proxies of the user's environment are left out."""
        return {
            "base_url": url,
            "headers": {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {},
            "trust_env": False,
            "event_hooks": {"request": [guard]},
        }

    @contextmanager
    def route_through(self, transport: httpx.BaseTransport) -> Iterator[None]:
        """Send the requests of the block through ``transport`` instead of straight to the server."""
        direct = self.client
        with httpx.Client(
            **self._addressed(self.listener.guard, self.root_url), transport=transport
        ) as self.client:
            yield
        self.client = direct

    def open_gateway(self, address: tuple[str, int] = (HOST, 0)) -> Gateway:
        """Return the proxy between clients and the server, which is started on first use.

        ``address``: where it listens; port 0 takes a free one.
        """
        if self._gateway is None:
            book = ScriptBook(self.scripts, self._call_format)
            gateway = Gateway(self.root_url, self.listener.guard_async, book, address)
            self._gateway = gateway.start()
        return self._gateway

    @property
    def url(self) -> str:
        """The address for clients, which scripts and faults concern."""
        return self.open_gateway().url

    @property
    def base_url(self) -> str:
        """The OpenAI-compatible base URL, below ``url``."""
        return self.url + "/v1"

    def script(self, answers: Answers) -> ScriptRule:
        """Say what the model answers to requests of any client at ``url``, whose prompts stay as
        they are.

        A list has the next answers in order; an answer whose request failed goes to the next
        request. ``{text: [answers]}`` has those of each turn of a conversation that contains
        ``text``, so that retries and concurrent conversations get theirs. A function gets each
        request (``ClientRequest``). An answer is a text, a ``Script``, a tuple of them for the
        choices of ``n``, or None for what the model likes to say.

        They count until the end of the test, or as ``with server.script(...)`` until the end of the
        block, at which ``ScriptError`` is raised if one could not be followed. Raises
        ``Unsupported`` if this engine cannot follow scripts.
        """
        return self.open_gateway().book.add(answers)

    def fail(self, *, times: int = 1, path: str = "", **fault: Unpack[FaultFields]) -> Fault:
        """Inject a fault into the next ``times`` requests at ``url`` whose address contains
        ``path``: ``status`` with ``retry_after``, ``delay_first_token``, ``stall_after``,
        ``drop_after`` and ``malformed_after`` a number of events of the stream,
        ``bytes_per_second``, ``refuse`` connections for some seconds.

        The server stays untouched. The test's log says what was injected. Faults count as long as
        scripts do.
        """
        return self.open_gateway().fail(Fault.create(times=times, path=path, **fault))

    @contextmanager
    def lend(self, loan: Loan, schemas: SchemaFilter) -> Iterator[None]:
        with super().lend(loan, schemas):
            try:
                yield
            finally:
                self.forget_scripts()

    @property
    def answered(self) -> Sequence[str]:
        """As ``Running.answered``: those that went through the gateway."""
        return () if self._gateway is None else tuple(self._gateway.answered)

    def forget_scripts(self) -> None:
        """Forget the answers and faults of a test."""
        if self._gateway is not None:
            self._gateway.clear()

    @property
    def _is_steered(self) -> bool:
        """Whether scripts or faults concern the next request."""
        return self._gateway is not None and self._gateway.is_used

    def _send(self, method: str, path: str, **request: Any) -> httpx.Response:
        with self._sender() as client:
            return client.request(method, path, timeout=None, **request)

    @contextmanager
    def _sender(self) -> Iterator[httpx.Client]:
        """Provide the client for a request of a test."""
        if not self._is_steered:
            yield self.client
            return
        with httpx.Client(**self._addressed(self.listener.guard, self.url)) as client:
            yield client

    def async_client(self, *, timeout: float | None = None) -> httpx.AsyncClient:
        """Return a new client for asynchronous code: ``async with server.async_client() as
        client``. It belongs to the event loop that uses it. Scripts and faults concern it if there
        was one before.

        ``timeout`` in seconds for each request (default: that of the request phase). Its requests
        have no dossiers.
        """
        seconds = self._deadline("request", timeout).allowed_s
        url = self.root_url if self._gateway is None else self.url
        return httpx.AsyncClient(**self._addressed(self.listener.guard_async, url), timeout=seconds)

    def post(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        rank: int | None = None,
        timeout: float | None = None,
    ) -> httpx.Response:
        """POST JSON and return the response, whatever its status. Raises ``DeadlineExceeded``
        without a response, and ``ChildDied``.

        ``rank``: the data-parallel rank that the request asks for, by the header
        ``X-data-parallel-rank``, which not every version heeds.
        """
        self.scripts.admit(body)
        filtered = self.schemas.apply(body)
        headers = {} if rank is None else {RANK_HEADER: str(rank)}
        return self._exchange(
            lambda: self._send("POST", path, json=filtered, headers=headers),
            self._deadline("request", timeout),
        )

    def get(self, path: str, *, timeout: float | None = None) -> httpx.Response:
        """GET, with errors as in ``post``."""
        return self._exchange(lambda: self._send("GET", path), self._deadline("request", timeout))

    def metrics(self, *, timeout: float | None = None) -> Metrics:
        """Return the server's metrics, from /metrics. Errors as in ``chat``."""
        response = self.get("/metrics", timeout=timeout)
        self._raise_for_status(response)
        return Metrics.parse(response.text)

    def tokens_by_rank(self, *, at_least: int = 0, timeout: float | None = None) -> dict[int, int]:
        """Return how many tokens each data-parallel rank has generated, from /metrics; ranks that
        were never asked may be missing.

        The difference of two calls says which ranks served the requests between them. ``at_least``:
        wait until at least this many tokens are counted in total, because counters may lag a step
        behind the answer to a request. Errors as in ``chat``. If fewer are counted within
        ``timeout`` seconds (default: those of the request phase), the server is ended and
        ``DeadlineExceeded`` is raised.
        """
        deadline = self._deadline("request", timeout)
        while True:
            last = deadline.passed
            tokens: Counter[int] = Counter()
            for labels, count in (
                self.metrics(timeout=timeout).of("vllm:generation_tokens_total").items()
            ):
                tokens[int(dict(labels).get("engine", 0))] += int(count)
            if tokens.total() >= at_least:
                return dict(sorted(tokens.items()))
            if last:
                raise self.child.failures.hung(
                    deadline,
                    f"{tokens.total()} of {at_least} tokens were counted within {deadline.allowed_s:g} s: {dict(tokens)} by "
                    "rank; some releases, such as 0.8.5, do not count those of every rank",
                )
            self.child.pause(_PAUSE_S)

    def post_all(
        self, path: str, bodies: Sequence[Mapping[str, Any]], *, timeout: float | None = None
    ) -> list[httpx.Response]:
        """POST all bodies at once, each over its own connection.

        Returns the responses in the order of the bodies. Errors as in ``post``.
        """
        for body in bodies:
            self.scripts.admit(body)
        filtered = [self.schemas.apply(body) for body in bodies]

        async def send() -> list[httpx.Response]:
            async with httpx.AsyncClient(
                **self._addressed(
                    self.listener.guard_async, self.url if self._is_steered else self.root_url
                ),
                timeout=None,
                limits=httpx.Limits(max_connections=None),
            ) as client:
                return await asyncio.gather(*(client.post(path, json=body) for body in filtered))

        return self._exchange(lambda: asyncio.run(send()), self._deadline("request", timeout))

    def health(self) -> Health:
        """Check in a few seconds whether the server is dead, stuck, slow or idle.

        ``text`` gives the reason.
        """
        starved = partial(waited_for_processor, self.child.pid or 0)
        return check_health(
            lambda path, seconds: self.client.get(path, timeout=seconds), self.child.pause, starved
        )

    def _exchange(self, send: Callable[[], T], deadline: Deadline) -> T:
        """Send a request and return its response.

        Failures become errors, with a dossier if it has none by the deadline.
        """
        try:
            response = self._supervise(send, self.child.wait(deadline))
        except httpx.TimeoutException:
            self._raise_no_answer(deadline)
        except NotOurServer as error:
            self._let_it_end(deadline)
            raise PortTaken(str(error), phase=deadline.phase) from None
        except httpx.TransportError as error:
            self._let_it_end(deadline)
            raise self.child.failures.error(
                f"the server broke the connection: {error!r}", phase=deadline.phase
            ) from None
        self.child.replied(deadline.phase, response)
        self.scripts.check()
        return response

    def _supervise(self, send: Callable[[], T], wait: Wait) -> T:
        """Send a request in a thread while supervising the server's processes and the deadline.

        A timeout of httpx would also count the time in which this process does not run. Raises what
        ``send`` and ``Wait.for_answer`` raise, and ``httpx.ReadTimeout`` at the deadline: the
        thread then ends with the server.
        """
        with BackgroundCall(send) as call:
            if not wait.for_answer(call):
                raise httpx.ReadTimeout(f"no answer within {wait.deadline.allowed_s:g} s")
        return call.result()

    def _raise_no_answer(self, deadline: Deadline) -> NoReturn:
        health = self.health()
        if health.state == DEAD:
            self._let_it_end(deadline)
        why = f"no HTTP answer within {deadline.allowed_s:g} s; {health.text}"
        raise self.child.failures.hung(
            deadline, why, answer=_masked(f"no HTTP answer: {health.text}")
        ) from None

    def _post_stream(
        self, path: str, timeout: float | None, **request: Any
    ) -> tuple[httpx.Response, list[str]]:
        """POST and return the response and its lines.

        An error response has no lines; its body has been read.
        """

        def read() -> tuple[httpx.Response, list[str]]:
            with (
                self._sender() as client,
                client.stream("POST", path, timeout=None, **request) as response,
            ):
                if response.is_error:
                    response.read()
                    return response, []
                return response, list(response.iter_lines())

        return self._exchange(read, self._deadline("request", timeout))

    def _parse_events(self, lines: Sequence[str]) -> list[dict[str, Any]]:
        """Return the chunks of a stream.

        Raises ``RemoteError`` if it does not end with ``[DONE]`` or contains an error.
        """
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        if not data or data[-1] != "[DONE]":
            message = f"the stream ended without [DONE]; last line: {lines[-1] if lines else ''!r}"
            raise self.child.failures.error(
                message, phase="request", answer=mask_log("\n".join(lines[-20:]))
            )
        chunks: list[dict[str, Any]] = [json.loads(event) for event in data[:-1]]
        for chunk in chunks:
            if "choices" not in chunk:
                error = _masked(json.dumps(chunk))
                raise self.child.failures.error(
                    f"the stream contains an error: {error}", phase="request", answer=error
                )
        return chunks

    def _request_json(
        self,
        path: str,
        body: Mapping[str, Any],
        timeout: float | None,
        *,
        tasks: Collection[str] = (),
    ) -> dict[str, Any]:
        """POST and return the JSON of the response.

        Raises ``Unsupported`` if this vLLM does not have the address, or has it only for models of
        other tasks although ``tasks``, for which some version has it, contains the server's task.
        """
        response = self.post(path, {"model": self.model, **body}, timeout=timeout)
        if response.status_code == 404:
            raise Unsupported(f"it serves no {path} (HTTP 404)", lacks=f"route {path}")
        other_model = _OTHER_MODEL.search(error_in(response))
        if other_model and self.spec.task in tasks:
            why = f"{path} for task={self.spec.task!r}: the {other_model.group()}"
            raise Unsupported(why, refused_by=f"this vLLM (HTTP {response.status_code})")
        return self._json(response)

    def _json(self, response: httpx.Response) -> dict[str, Any]:
        """Return the JSON of a response that is not an error. vLLM sends some errors with the
        status of success."""
        self._raise_for_status(response)
        if error := error_in(response):
            message = _masked(f"HTTP {response.status_code}, but an error: {error}")
            self._raise_error(message, "http.error", is_server_error=_code_in(response) >= 500)
        value = response.json()
        assert isinstance(value, dict)
        return value

    def _check_reads_sounds(self, error: str) -> None:
        """Raise ``Unsupported`` if vLLM reports that the packages for reading audio files are
        missing, and they are."""
        if self.sound_needs and AUDIO_EXTRA in error:
            raise self._reads_no_sounds()

    def _reads_no_sounds(self) -> Unsupported:
        return Unsupported(f"it reads no sound files without {self.sound_needs}", needs=AUDIO_EXTRA)

    def _raise_for_status(self, response: httpx.Response) -> None:
        if response.is_error:
            message = _masked(f"HTTP {response.status_code}: {response.text}")
            self._raise_error(
                message, f"http.{response.status_code}", is_server_error=response.status_code >= 500
            )

    def _raise_error(self, message: Masked, type_name: str, *, is_server_error: bool) -> NoReturn:
        """Raise the error that the server reported.

        For server errors the log is added, because the response rarely has the reason.
        """
        log = self.child.failures.log_tail() if is_server_error else ""
        self._check_reads_sounds(message + log)
        died = is_server_error and self._is_dead()
        raise self.child.failures.error(
            message, phase="request", detail=log, type_name=type_name, died=died, answer=message
        )

    def _let_it_end(self, deadline: Deadline) -> None:
        """Raise ``ChildDied`` if the server has ended.

        Wait first if it has closed its port: on a busy machine its exit takes a while.
        """
        try:
            self.client.get("/health", timeout=HEALTH_TIMEOUT_S)
        except NotOurServer:
            pass
        except httpx.ConnectError:
            self.child.pause(ENDING_S)
        except httpx.TransportError:
            pass
        self.child.check_alive(deadline)

    def _is_dead(self) -> bool:
        """Return whether the server reports a dead engine or is gone itself, which shows earlier
        here than in its processes.

        A server that does not answer in time is not dead.
        """
        try:
            return self.client.get("/health", timeout=HEALTH_TIMEOUT_S).is_server_error
        except httpx.TimeoutException:
            return False
        except httpx.TransportError:
            return True


def _masked(answer: str) -> Masked:
    """Return what a server answered, masked and cut to a bound."""
    return mask_log(answer[:_MAX_ANSWER])


def unknown_address(reply: object) -> str:
    """Return the path of a request that was refused because the server has no such address; empty
    for any other reply.

    The status alone does not tell: vLLM also answers 404 for an unknown model.
    """
    if not isinstance(reply, httpx.Response) or reply.status_code != 404:
        return ""
    error = _error_of(reply)
    not_found = error.get("message", error.get("detail")) == "Not Found"
    return reply.request.url.path if not_found else ""


def error_in(response: httpx.Response) -> str:
    """Return the body if it is an error, by its status or its form (flat up to 0.9, later below
    ``error``), or an empty string."""
    if response.is_error:
        return response.text
    value = response.json()
    if not isinstance(value, dict):
        return ""
    kind, error = value.get("object"), value.get("error")
    return response.text if kind == "error" or (kind is None and isinstance(error, dict)) else ""


def _code_in(response: httpx.Response) -> int:
    """Return the status code in the body of an error, or that of the response if the body has none."""
    code = _error_of(response).get("code")
    return code if isinstance(code, int) else response.status_code


def _error_of(response: httpx.Response) -> Mapping[str, Any]:
    """Return the object that describes an error in a body; empty if there is none."""
    with suppress(ValueError, AttributeError):
        value = response.json()
        error = value.get("error", value)
        return error if isinstance(error, dict) else {}
    return {}
