"""The gateway between clients and a server, with a small server behind it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from pytest_vllm_regress.engines.http.faults import Fault
from pytest_vllm_regress.engines.http.gateway import Gateway
from pytest_vllm_regress.engines.http.listeners import NotOurServer
from pytest_vllm_regress.engines.inputs.formats import CallFormat
from pytest_vllm_regress.engines.inputs.script import ScriptWatch
from pytest_vllm_regress.engines.inputs.script_rules import ScriptBook
from pytest_vllm_regress.errors import ScriptError, UsageError
from pytest_vllm_regress.target_site.vllm_regress_target import script_format
from pytest_vllm_regress.util.deadline import Deadline

CHAT = "/v1/chat/completions"
EVENTS = ["data: 1\n\n", "data: 2\n\n", "data: 3\n\n", "data: [DONE]\n\n"]


class Upstream(ThreadingHTTPServer):
    """Answers with what the script in the request's id says, like a worker, or with an echo."""

    request_queue_size = 128
    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.received: list[tuple[str, dict[str, str], bytes]] = []
        self.broken = threading.Event()
        """Set when a client's connection broke during a stream."""
        self.connections = 0
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Upstream
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.received.append((self.path, headers, body))
        document = json.loads(body) if body.startswith(b"{") else {}
        if document.get("stream"):
            self._stream(endless=document["stream"] == "endless")
            return
        ids = headers.get("x-request-id", "") + str(document.get("request_id", ""))
        named = script_format.named_in(ids)
        said = body.decode()
        if named is not None:
            said = (self.server.folder / named[0]).read_text()
            (self.server.folder / (named[1] + script_format.USED_SUFFIX)).touch()
        self._send(500 if document.get("break") else 200, said.encode())

    do_GET = do_POST

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Kept", "yes")
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, endless: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for event in EVENTS:
                self.wfile.write(event.encode())
            while endless:
                self.wfile.write(b": ping\n\n")
                time.sleep(0.01)
        except OSError:
            self.server.broken.set()


async def _trusting(request: Any) -> None:
    """Every server is ours."""


@pytest.fixture
def watch(tmp_path: Path) -> ScriptWatch:
    return ScriptWatch("", tmp_path / "notes", "sim")


@pytest.fixture
def upstream(watch: ScriptWatch) -> Iterator[Upstream]:
    server = Upstream(watch.folder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def gateway(upstream: Upstream, watch: ScriptWatch) -> Iterator[Gateway]:
    url = f"http://127.0.0.1:{upstream.server_port}"
    started = Gateway(url, _trusting, ScriptBook(watch, CallFormat("", False))).start()
    yield started
    started.close()


@pytest.fixture
def client(gateway: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, trust_env=False, timeout=20) as client:
        yield client


def test_what_is_not_scripted_passes_as_it_came(client: httpx.Client, upstream: Upstream) -> None:
    headers = {"X-Request-Id": "mine", "Authorization": "Bearer key"}
    for body in (b"", b"\x00binary", b'{"a": 1}'):
        answer = client.post("/any?x=%20y", content=body, headers=headers)
        assert (answer.content, answer.headers["X-Kept"]) == (body, "yes")
        path, received, content = upstream.received[-1]
        assert (path, content) == ("/any?x=%20y", body)
        assert received["x-request-id"] == "mine" and received["authorization"] == "Bearer key"
    assert client.get("/health").status_code == 200


def test_a_connection_to_the_server_serves_several_requests(
    gateway: Gateway, upstream: Upstream
) -> None:
    for number in range(5):  # each by a client of its own
        assert httpx.post(gateway.url + CHAT, content=str(number), trust_env=False).is_success
    assert upstream.connections < 5


def test_a_stream_arrives_while_it_is_made(client: httpx.Client, upstream: Upstream) -> None:
    with client.stream("POST", CHAT, json={"stream": "endless"}) as response:
        lines = response.iter_lines()
        assert [next(lines) for _ in range(3)] == ["data: 1", "", "data: 2"]
    assert upstream.broken.wait(20)  # the client has gone, and so has its request


def test_scripts_are_named_in_the_ids_of_requests(
    client: httpx.Client, gateway: Gateway, upstream: Upstream, watch: ScriptWatch
) -> None:
    gateway.book.add(["one", "two"])
    assert client.post(CHAT, json={}, headers={"X-Request-Id": "mine"}).text == "one"
    assert upstream.received[-1][1]["x-request-id"].startswith("mine-script-")
    assert client.post("/v1/responses", json={"input": "Hi"}).text == "two"
    body = json.loads(upstream.received[-1][2])
    assert body["input"] == "Hi" and body["request_id"].startswith("resp_script-")
    watch.check()
    answer = client.post(CHAT, json={})
    assert answer.status_code == 400 and "no scripted answer is left" in answer.text
    with pytest.raises(ScriptError, match="no scripted answer is left"):
        watch.check()


def test_an_error_of_the_server_keeps_the_answer(client: httpx.Client, gateway: Gateway) -> None:
    gateway.book.add(["one"])
    assert client.post(CHAT, json={"break": True}).status_code == 500
    assert client.post(CHAT, json={}).text == "one"
    assert list(gateway.answered) == [f"POST {CHAT}: status {code}" for code in (500, 200)]


def test_concurrent_requests_get_their_own_answers(gateway: Gateway) -> None:
    gateway.book.add(lambda request: f"echo-{request.text}")

    async def ask_all() -> list[str]:
        limit = asyncio.Semaphore(64)
        async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=60) as http:

            async def ask(number: int) -> str:
                async with limit:
                    return (await http.post(CHAT, json={"prompt": str(number)})).text

            return await asyncio.gather(*map(ask, range(300)))

    assert asyncio.run(ask_all()) == [f"echo-{number}" for number in range(300)]


def test_a_status_comes_in_place_of_the_server(
    client: httpx.Client,
    gateway: Gateway,
    upstream: Upstream,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fault = gateway.fail(Fault.create(status=429, retry_after=1.5, times=2, path="/chat/"))
    with caplog.at_level(logging.WARNING, "vllm_regress.gateway"):
        assert client.post("/v1/models").status_code == 200
        for _ in range(2):
            answer = client.post(CHAT, json={})
            assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1.5")
            assert answer.json()["error"]["code"] == 429
        assert client.post(CHAT, json={}).status_code == 200
    assert len(upstream.received) == 2 and len(fault.requests) == 2
    assert f"POST {CHAT} (2 of 2): status=429, retry_after=1.5" in caplog.text


def streamed(client: httpx.Client, timeout: float = 20) -> str:
    """Return what arrives of a stream until it ends or breaks."""
    text = ""
    with client.stream("POST", CHAT, json={"stream": True}, timeout=timeout) as response:
        try:
            for part in response.iter_text():
                text += part
        except httpx.TransportError as error:
            text += type(error).__name__
    return text


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ({"drop_after": 2}, "".join(EVENTS[:2]) + "RemoteProtocolError"),
        ({"drop_after": 0}, "RemoteProtocolError"),
        ({"drop_after": 99}, "".join(EVENTS[:3]) + "RemoteProtocolError"),
        ({"stall_after": 1}, EVENTS[0] + "ReadTimeout"),
        ({"malformed_after": 1}, EVENTS[0] + 'data: {"id": "broken\n\n' + "".join(EVENTS[1:])),
        ({"bytes_per_second": 400}, "".join(EVENTS)),
    ],
)
def test_a_stream_fails_where_it_is_told(
    client: httpx.Client, gateway: Gateway, fault: dict[str, Any], expected: str
) -> None:
    gateway.fail(Fault.create(**fault))
    assert streamed(client, timeout=0.5) == expected
    assert streamed(client) == "".join(EVENTS)


@pytest.mark.parametrize(
    ("fault", "meets"),
    [
        ({"malformed_after": 0}, lambda text: text == 'data: {"id": "broken'),
        ({"delay_first_token": 0.2}, lambda text: text == '{"a":1}'),
    ],
)
def test_a_whole_body_is_one_event(
    client: httpx.Client, gateway: Gateway, fault: dict[str, Any], meets: Callable[[str], bool]
) -> None:
    gateway.fail(Fault.create(**fault))
    began = time.monotonic()
    assert meets(client.post(CHAT, json={"a": 1}).text)
    assert time.monotonic() - began >= fault.get("delay_first_token", 0)


def test_connections_are_refused_for_a_while(client: httpx.Client, gateway: Gateway) -> None:
    assert client.get("/health").status_code == 200  # and the connection stays open
    gateway.fail(Fault.create(refuse=3600))
    with pytest.raises((httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError)):
        client.get("/health")
    with pytest.raises(httpx.ConnectError):
        client.get("/health")
    gateway.clear()
    assert client.get("/health").status_code == 200


def test_a_refusal_ends_by_itself(client: httpx.Client, gateway: Gateway) -> None:
    gateway.fail(Fault.create(refuse=0.2))
    deadline = Deadline.after("refusal", 30)
    while not deadline.passed:
        with contextlib.suppress(httpx.TransportError):
            assert client.get("/health").status_code == 200
            return
        time.sleep(0.02)
    raise AssertionError("still refused")


def test_only_faults_of_blocks_outlive_the_test(client: httpx.Client, gateway: Gateway) -> None:
    gateway.fail(Fault.create(status=500, times=9))
    with gateway.fail(Fault.create(status=503, times=9)):
        gateway.clear()
        assert client.post(CHAT).status_code == 503
    assert client.post(CHAT).status_code == 200


def test_the_end_of_the_server_breaks_the_connection(
    client: httpx.Client, upstream: Upstream
) -> None:
    upstream.shutdown()
    upstream.server_close()
    with pytest.raises(httpx.RemoteProtocolError):
        client.post(CHAT, json={})


def test_what_was_scripted_for_a_stopped_server_can_be_forgotten(gateway: Gateway) -> None:
    gateway.close()
    gateway.clear()


def test_another_program_at_the_address_of_the_server_is_named(
    upstream: Upstream, watch: ScriptWatch
) -> None:
    async def distrusting(request: Any) -> None:
        raise NotOurServer("port 1 is held by another program")

    url = f"http://127.0.0.1:{upstream.server_port}"
    gateway = Gateway(url, distrusting, ScriptBook(watch, CallFormat("", False))).start()
    answer = httpx.post(gateway.url + CHAT, json={}, trust_env=False)
    gateway.close()
    assert answer.status_code == 502 and "is held by another program" in answer.text
    assert not upstream.received


def test_what_is_no_http_is_hung_up_on(gateway: Gateway) -> None:
    with socket.create_connection(("127.0.0.1", httpx.URL(gateway.url).port or 0)) as plain:
        plain.sendall(b"\x16\x03\x01 no http\r\n\r\n")
        plain.settimeout(20)
        with contextlib.suppress(ConnectionResetError):
            assert plain.recv(1) == b""


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({}, "say what is to happen: status"),
        ({"statuss": 429}, "Did you mean status"),
        ({"status": 42}, "status=42 is not a status"),
        ({"drop_after": -1}, "drop_after=-1 is not a number"),
        ({"status": "429"}, "status='429' is not a number"),
    ],
)
def test_an_impossible_fault_is_a_usage_error(fault: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Fault.create(**fault)
