"""How the outcome of a request is told, whatever the server does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import httpx
import pytest

from pytest_vllm_regress.engines.server import Server
from pytest_vllm_regress.surveys.states.requests import (
    BROKEN,
    COMPLETE,
    CUT,
    OPEN,
    REFUSED,
    SILENT,
    Stream,
    ask,
)
from tests.unit.engines.test_server import unconnected

TOKEN = b'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n'
LAST = b'data: {"choices": [{"text": "b", "finish_reason": "length"}]}\n\n'
ABORTED = b'data: {"choices": [{"text": "", "finish_reason": "abort"}]}\n\n'
ERROR = b'data: {"error": {"message": "EngineCore encountered an issue"}}\n\n'
DONE = b"data: [DONE]\n\n"
END_S = 30.0


class Body(httpx.SyncByteStream):
    """An answer in pieces. An exception among them is raised; an event is waited for."""

    def __init__(self, *pieces: bytes | Exception | threading.Event) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            if isinstance(piece, Exception):
                raise piece
            if isinstance(piece, threading.Event):
                piece.wait()
            else:
                yield piece


def answering(respond: Callable[[httpx.Request], httpx.Response]) -> Server:
    server = unconnected(9)
    server.client = httpx.Client(base_url=server.root_url, transport=httpx.MockTransport(respond))
    return server


def streaming(*pieces: bytes | Exception | threading.Event, status: int = 200) -> Server:
    return answering(lambda request: httpx.Response(status, stream=Body(*pieces)))


@pytest.mark.parametrize("status", [200, 404, 503])
def test_the_status_of_an_answer_is_told(status: int) -> None:
    assert ask(answering(lambda request: httpx.Response(status)), "/health") == str(status)


def test_a_request_with_tokens_is_a_completion() -> None:
    seen = []

    def respond(request: httpx.Request) -> httpx.Response:
        seen.append(
            (
                request.method,
                request.url.path,
                b'"max_tokens":1' in request.content.replace(b" ", b""),
            )
        )
        return httpx.Response(200)

    ask(answering(respond), "/v1/completions", tokens=1)
    assert seen == [("POST", "/v1/completions", True)]


@pytest.mark.parametrize(
    ("error", "word"),
    [(httpx.ConnectError, REFUSED), (httpx.ReadError, BROKEN), (httpx.RemoteProtocolError, BROKEN)],
)
def test_a_failed_connection_is_a_word_and_no_exception(
    error: type[httpx.TransportError], word: str
) -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        raise error("no")

    assert ask(answering(respond), "/health") == word


def test_a_server_that_never_answers_ends_the_wait_at_its_deadline() -> None:
    released = threading.Event()

    def respond(request: httpx.Request) -> httpx.Response:
        released.wait()
        return httpx.Response(200)

    try:
        assert ask(answering(respond), "/health", wait_s=0.05) == SILENT
    finally:
        released.set()


@pytest.mark.parametrize(
    ("pieces", "outcome", "received"),
    [
        ((TOKEN, LAST, DONE), COMPLETE, 2),
        ((TOKEN, LAST), CUT, 2),
        ((TOKEN, httpx.ReadError("reset")), CUT, 1),
        ((TOKEN, ERROR, DONE), "error", 1),
        ((TOKEN, b"data: not JSON\n\n"), "error", 1),
        ((TOKEN, b"data: [1]\n\n"), "error", 1),
        ((TOKEN, ABORTED, DONE), "ended as abort", 2),
        ((TOKEN, DONE), "ended as None", 1),
    ],
)
def test_a_stream_tells_how_it_ended(
    pieces: tuple[bytes | Exception, ...], outcome: str, received: int
) -> None:
    stream = Stream(streaming(*pieces), 2)
    assert stream.wait_for_first(END_S)
    assert (stream.outcome(END_S), stream.received) == (outcome, received)


def test_a_refused_stream_does_not_begin() -> None:
    stream = Stream(streaming(b"engine is dead", status=500), 2)
    assert not stream.wait_for_first(END_S)
    assert stream.outcome(END_S) == "HTTP 500"


def test_a_stream_that_goes_on_is_open() -> None:
    released = threading.Event()
    stream = Stream(streaming(TOKEN, released, LAST, DONE), 2)
    assert stream.wait_for_first(END_S)
    assert stream.outcome(0) == OPEN
    released.set()
    assert stream.outcome(END_S) == COMPLETE
