"""The gateway: a small HTTP proxy in this process, between clients and one server.

It gives requests their scripts, by the header X-Request-Id, and injects faults. Everything else
goes through as it came, streams chunk by chunk. When a client goes away, so does its request to the
server.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import Any

import h11
import httpx

from ..inputs.client_request import ClientRequest
from ..inputs.script_rules import NoAnswer, ScriptBook, ScriptedRequest
from ..ports import HOST
from .faults import Dropped, Fault, FaultQueue
from .listeners import NotOurServer

_log = logging.getLogger("vllm_regress.gateway")
Headers = list[tuple[bytes, bytes]]
Guard = Callable[[Any], Any]
"""An event hook of an httpx client, which checks who listens at the server's address."""

_OF_THE_CONNECTION = frozenset(
    (b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect")
)
"""Headers between two neighbours (RFC 9110, 7.6.1); each connection has its own."""
_REQUEST_ID = b"x-request-id"
_READ = 1 << 16
_MAX_ANSWERED = 100
_IDLE_S = 3.0
"""Seconds for which a connection to the server is kept. vLLM closes one after five, and a new one
costs more than a short request: the kernel's tables are read to see who listens."""
_STEP_S = 10.0
"""Seconds that the gateway's thread gets for one order."""


class Gateway:
    """Listens at ``url`` from ``start`` to ``close``, in a thread of its own.

    ``server_url``: the server behind it. ``address``: host and port to listen at; port 0 takes a
    free one.
    """

    def __init__(
        self,
        server_url: str,
        guard: Guard,
        book: ScriptBook,
        address: tuple[str, int] = (HOST, 0),
    ) -> None:
        self.book = book
        self.faults = FaultQueue()
        self.answered: deque[str] = deque(maxlen=_MAX_ANSWERED)
        """The requests that the server answered, each with its status."""
        self._server_url = server_url
        self._guard = guard
        self._address = address
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._listener: asyncio.Server | None = None
        self._refusal: asyncio.Task[None] | None = None
        self._refused_enough = asyncio.Event()
        self._connections: dict[asyncio.Task[None], _Connection] = {}

    @property
    def url(self) -> str:
        host, port = self._address
        return f"http://{HOST if host in ('0.0.0.0', '') else host}:{port}"

    @property
    def is_used(self) -> bool:
        """Whether a test has scripted answers or ordered faults."""
        return not (self.book.is_empty and self.faults.is_empty)

    def start(self) -> Gateway:
        """Begin to listen. Raises ``OSError`` if the address is taken."""
        self._thread.start()
        try:
            self._run(self._open())
        except BaseException:
            self._end_thread()
            raise
        return self

    def fail(self, fault: Fault) -> Fault:
        """Inject a fault into the next requests."""
        if fault.refuse is not None:
            _log.warning("injected: no connection to %s for %g s", self.url, fault.refuse)
            self._run(self._refuse(fault.refuse))
        return self.faults.add(fault)

    def clear(self) -> None:
        """Forget requests, and all answers and faults but those of ``with`` blocks."""
        self.book.clear()
        self.faults.clear()
        self.answered.clear()
        if self._thread.is_alive():  # a stopped server is known until nothing refers to it
            self._run(self._end_refusal())

    def close(self) -> None:
        """Break all connections and stop listening."""
        if self._thread.is_alive():
            with suppress(TimeoutError):
                self._run(self._close())
            self._end_thread()

    def _run(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_STEP_S)

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STEP_S)
        if not self._thread.is_alive():
            self._loop.close()

    async def _open(self) -> None:
        limits = httpx.Limits(max_connections=None, keepalive_expiry=_IDLE_S)
        self._client = httpx.AsyncClient(
            timeout=None, trust_env=False, limits=limits, event_hooks={"request": [self._guard]}
        )
        await self._listen(self._bound())

    def _bound(self) -> socket.socket:
        """Return a socket that has our address and does not listen yet."""
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(self._address)
        except OSError:
            bound.close()
            raise
        self._address = (self._address[0], bound.getsockname()[1])
        return bound

    async def _listen(self, bound: socket.socket) -> None:
        self._listener = await asyncio.start_server(self._accept, sock=bound, backlog=1024)

    async def _refuse(self, seconds: float) -> None:
        await self._end_refusal()
        assert self._listener is not None
        self._listener.close()
        for connection in self._connections.values():
            connection.end()
        bound = self._bound()  # nobody else can take the address, and nobody is accepted
        self._refusal = self._loop.create_task(self._reopen(bound, seconds))

    async def _reopen(self, bound: socket.socket, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._refused_enough.wait(), seconds)
        await self._listen(bound)

    async def _end_refusal(self) -> None:
        """Listen again now, if connections are refused."""
        if self._refusal is not None:
            self._refused_enough.set()
            await self._refusal
            self._refusal = None
            self._refused_enough.clear()

    async def _close(self) -> None:
        await self._end_refusal()
        if self._listener is not None:
            self._listener.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._client.aclose()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connection = self._connections[task] = _Connection(reader, writer)
        try:
            while await self._serve(connection):
                pass
        except (ConnectionError, h11.ProtocolError, Dropped, httpx.TransportError):
            connection.abort()
        except asyncio.CancelledError:
            connection.abort()
        finally:
            del self._connections[task]
            connection.close()

    async def _serve(self, connection: _Connection) -> bool:
        """Answer one request. Return whether another may follow."""
        received = await connection.receive()
        if received is None:
            return False
        head, body = received
        answering = asyncio.ensure_future(self._answer(connection, head, body))
        gone = asyncio.ensure_future(connection.wait_until_gone())
        try:
            await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                return False
            await answering
        finally:
            for task in (answering, gone):
                task.cancel()
            await asyncio.gather(answering, gone, return_exceptions=True)
        return connection.next()

    async def _answer(self, connection: _Connection, head: h11.Request, body: bytes) -> None:
        request = _as_seen(head, body)
        fault = self.faults.take(request)
        if fault is not None:
            _log.warning(
                "injected into %s %s (%d of %d): %s",
                *(request.method, request.path, len(fault.requests), fault.times, fault),
            )
            if fault.status is not None:
                await asyncio.sleep(fault.delay_first_token or 0)
                await connection.send_whole(fault.status, fault.body(), _retry_after(fault))
                return
        try:
            scripted = self.book.take(request)
        except NoAnswer as error:
            await connection.send_whole(400, _error(str(error)))
            return
        succeeded = False
        try:
            succeeded = await self._forward(connection, head, body, scripted, fault)
        except NotOurServer as error:
            await connection.send_whole(502, _error(str(error)))
        finally:
            if scripted is not None:
                self.book.close(scripted, request.path, succeeded=succeeded)

    async def _forward(
        self,
        connection: _Connection,
        head: h11.Request,
        body: bytes,
        scripted: ScriptedRequest | None,
        fault: Fault | None,
    ) -> bool:
        """Send a request on and its response back. Return whether it succeeded."""
        url = self._server_url + head.target.decode("ascii")
        headers = _passed_on(head.headers)
        if scripted is not None:
            headers, body = _named(headers, body, scripted.request_id, url)
        request = httpx.Request(head.method.decode("ascii"), url, headers=headers, content=body)
        response = await self._client.send(request, stream=True)
        self.answered.append(f"{request.method} {request.url.path}: status {response.status_code}")
        try:
            await self._relay(connection, response, fault)
        finally:
            await response.aclose()
        return response.is_success

    async def _relay(
        self, connection: _Connection, response: httpx.Response, fault: Fault | None
    ) -> None:
        headers = [
            (name.lower(), value)
            for name, value in response.headers.raw
            if name.lower() not in _OF_THE_CONNECTION
        ]
        chunks: AsyncIterator[bytes] = response.aiter_raw()
        if fault is not None:
            headers = [(name, value) for name, value in headers if name != b"content-length"]
            streamed = response.headers.get("content-type", "").startswith("text/event-stream")
            chunks = fault.disturb(chunks, streamed)
        await connection.send_head(response.status_code, headers)
        async for chunk in chunks:
            await connection.send(h11.Data(data=chunk))
        await connection.send(h11.EndOfMessage())


class _Connection:
    """A client's connection: h11 parses what it sends and frames what it is sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._state = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        self._is_last = False

    def end(self) -> None:
        """Break the connection if it waits for a request, else after the answer that is sent."""
        self._is_last = True
        if self._state.our_state is h11.IDLE:
            self.abort()

    async def receive(self) -> tuple[h11.Request, bytes] | None:
        """Return the next request and its body; None if there is none any more."""
        head, body = None, bytearray()
        while True:
            event = self._state.next_event()
            if event is h11.NEED_DATA:
                if self._state.they_are_waiting_for_100_continue:
                    await self.send(h11.InformationalResponse(status_code=100, headers=[]))
                self._state.receive_data(await self._reader.read(_READ))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                return head, bytes(body)
            else:
                return None

    async def wait_until_gone(self) -> None:
        """Wait until the client has closed its end. What it sends until then is kept."""
        while data := await self._reader.read(_READ):
            self._state.receive_data(data)

    def next(self) -> bool:
        """Return whether another request may follow on this connection."""
        states = (self._state.our_state, self._state.their_state)
        if self._is_last or h11.MUST_CLOSE in states:
            return False
        self._state.start_next_cycle()
        return True

    async def send(self, event: h11.Event) -> None:
        data = self._state.send(event)
        if data:
            self._writer.write(data)
            await self._writer.drain()

    async def send_head(self, status: int, headers: Headers) -> None:
        await self.send(h11.Response(status_code=status, headers=headers))

    async def send_whole(self, status: int, body: bytes, headers: Iterable[Any] = ()) -> None:
        """Send a JSON body."""
        length = str(len(body)).encode()
        own = [(b"content-type", b"application/json"), (b"content-length", length)]
        await self.send_head(status, [*own, *headers])
        await self.send(h11.Data(data=body))
        await self.send(h11.EndOfMessage())

    def abort(self) -> None:
        """Break the connection, as the end of the server's process would."""
        self._writer.transport.abort()

    def close(self) -> None:
        with suppress(OSError):
            self._writer.close()


def _as_seen(head: h11.Request, body: bytes) -> ClientRequest:
    path = head.target.decode("ascii").partition("?")[0]
    return ClientRequest(path, _document(body), head.method.decode("ascii"))


def _document(body: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        document = json.loads(body)
        return document if isinstance(document, dict) else {}
    return {}


def _passed_on(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the headers of a request without those of the connection."""
    dropped = {*_OF_THE_CONNECTION, b"content-length"}
    return [(name, value) for name, value in headers if name not in dropped]


def _named(headers: Headers, body: bytes, request_id: str, url: str) -> tuple[Headers, bytes]:
    """Return a request whose id names its script, after the id that the client gave it.

    The Responses API takes the id from the body.
    """
    own = dict(headers).get(_REQUEST_ID)
    name = request_id.encode() if own is None else own + b"-" + request_id.encode()
    headers = [header for header in headers if header[0] != _REQUEST_ID]
    if url.partition("?")[0].endswith("/responses"):
        document = _document(body)
        document["request_id"] = f"{document.get('request_id', 'resp')}_{request_id}"
        body = json.dumps(document).encode()
    return [*headers, (_REQUEST_ID, name)], body


def _retry_after(fault: Fault) -> Headers:
    if fault.retry_after is None:
        return []
    return [(b"retry-after", f"{fault.retry_after:g}".encode())]


def _error(message: str) -> bytes:
    """Return an error in OpenAI's format."""
    return json.dumps(
        {"error": {"message": message, "type": "vllm-regress", "code": None}}
    ).encode()
