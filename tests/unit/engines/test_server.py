"""The errors that a server's responses are reported as. The server is httpx's mock transport."""

from __future__ import annotations

import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest

from pytest_vllm_regress.engines.http.listeners import NotOurServer
from pytest_vllm_regress.engines.http.transport import ENDING_S
from pytest_vllm_regress.engines.processes.early_exit import Wait
from pytest_vllm_regress.engines.running import Launch
from pytest_vllm_regress.engines.server import Server, start_server
from pytest_vllm_regress.engines.spec import EngineSpec
from pytest_vllm_regress.errors import (
    Cause,
    ChildDied,
    DeadlineExceeded,
    Kind,
    PortTaken,
    RemoteError,
    Unsupported,
    UsageError,
)
from pytest_vllm_regress.util.deadline import Deadline, DeadlineFor


def five_seconds(phase: str, seconds: float | None = None) -> Deadline:
    return Deadline.after(phase, 5)


def unconnected(port: int, deadline_for: DeadlineFor = five_seconds, **spec: Any) -> Server:
    """Return a server object for whatever listens on ``port``."""

    def failure(message: str, *, phase: str, died: bool = False, **rest: Any) -> RemoteError:
        return RemoteError(message, phase=phase, engine_died=died)

    def wait(deadline: Deadline) -> Wait:
        return Wait(deadline, child.failures)

    child = SimpleNamespace(
        pid=None,
        failures=SimpleNamespace(error=failure, log_tail=lambda: "", alive=True),
        replied=lambda phase, reply: None,
        wait=wait,
        check_alive=lambda deadline: None,
        pause=lambda seconds: None,
        processes=lambda: [psutil.Process()],
    )
    scripts = SimpleNamespace(admit=lambda body: None, check=lambda: None)

    launch = Launch(child, EngineSpec.create(**spec), deadline_for, scripts)  # type: ignore[arg-type]
    return Server(launch, SimpleNamespace(number=port), "key")  # type: ignore[arg-type]


def server(answer: int, health: int | type[httpx.TransportError]) -> Server:
    """Return a server that answers every request with the status ``answer``, and /health with
    ``health`` or this error."""
    server = unconnected(9)

    def respond(request: httpx.Request) -> httpx.Response:
        if request.url.path != "/health":
            return httpx.Response(answer, json={"error": "said"})
        if isinstance(health, int):
            return httpx.Response(health)
        raise health("no answer")

    server.client = httpx.Client(base_url=server.root_url, transport=httpx.MockTransport(respond))
    return server


@pytest.mark.parametrize(
    ("answer", "health", "kind"),
    [
        (500, 200, Kind.EXCEPTION),
        (500, 503, Kind.ENGINE_DEATH),
        (500, 500, Kind.ENGINE_DEATH),
        (500, httpx.ConnectError, Kind.ENGINE_DEATH),
        (500, httpx.RemoteProtocolError, Kind.ENGINE_DEATH),
        (500, httpx.ReadTimeout, Kind.EXCEPTION),
        (400, 503, Kind.EXCEPTION),
    ],
)
def test_an_engine_is_dead_if_its_server_reports_that(
    answer: int, health: int | type[httpx.TransportError], kind: Kind
) -> None:
    """The processes of a dying engine core may still exist, and a failed request alone does not
    mean a dead engine."""
    with pytest.raises(RemoteError, match=f"HTTP {answer}") as caught:
        server(answer, health).check()
    assert caught.value.kind is kind


@pytest.mark.parametrize(
    ("code", "health", "kind"),
    [(500, 503, Kind.ENGINE_DEATH), (500, 200, Kind.EXCEPTION), (400, 503, Kind.EXCEPTION)],
)
def test_an_error_with_the_status_of_success_may_be_a_dead_engine(
    code: int, health: int, kind: Kind
) -> None:
    """vLLM 0.15 and 0.16 answer so, and the processes of the engine may still exist."""

    def respond(request: httpx.Request) -> httpx.Response:
        error = {"error": {"message": "EngineCore encountered an issue", "code": code}}
        return (
            httpx.Response(health)
            if request.url.path == "/health"
            else httpx.Response(200, json=error)
        )

    answering = unconnected(9)
    answering.client = httpx.Client(
        base_url=answering.root_url, transport=httpx.MockTransport(respond)
    )
    with pytest.raises(RemoteError, match="HTTP 200, but an error") as caught:
        answering.check()
    assert caught.value.kind is kind


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize(
    ("seen", "otherwise"),
    [
        ("no answer", DeadlineExceeded),
        ("another listener", PortTaken),
        ("refused connection", RemoteError),
    ],
)
def test_a_server_that_has_closed_its_port_gets_time_to_end(
    seen: str, otherwise: type[Exception], ends: bool
) -> None:
    """Regression: on a busy machine, a server that was shutting down was reported as hanging, as
    alive, or as having lost its port."""
    waited: list[float] = []

    def died(deadline: Deadline) -> None:
        if ends and waited:
            raise ChildDied("it ended", phase="request")

    def hung(deadline: Deadline, why: str, **parts: Any) -> Exception:
        return DeadlineExceeded(why, phase=deadline.phase)

    def refuse(request: httpx.Request) -> httpx.Response:
        if seen == "another listener" and request.url.path != "/health":
            raise NotOurServer("changed")
        raise httpx.ConnectError("refused")

    closed = unconnected(9)
    vars(closed.child).update(check_alive=died, pause=waited.append)
    closed.child.failures.hung = hung  # type: ignore[method-assign, assignment]
    if seen == "no answer":
        closed.child.wait = lambda deadline: SimpleNamespace(  # type: ignore[method-assign, assignment, return-value]
            deadline=deadline, for_answer=lambda call: False
        )
    closed.client = httpx.Client(base_url=closed.root_url, transport=httpx.MockTransport(refuse))
    with pytest.raises(ChildDied if ends else otherwise):
        closed.get("/v1/models")
    assert waited[0] == ENDING_S


@pytest.mark.parametrize(
    ("first_error", "expected"),
    [
        (
            "NotImplementedError: VLLM_USE_V1=1 is not supported with --enable-prompt-embeds.",
            Unsupported,
        ),
        (
            "NotImplementedError: VLLM_USE_V1=1 is not supported with Compute Capability < 8.0.",
            Unsupported,
        ),
        (
            "NotImplementedError: VLLM_USE_V1=1 is not supported with ['WhisperForConditionalGeneration'].",
            Unsupported,
        ),
        ("ValueError: cumem allocator is not supported on current platform.", Unsupported),
        ("OSError: [Errno 98] Address already in use", ChildDied),
    ],
)
def test_features_that_vllm_rejects_at_the_start_are_not_applicable(
    first_error: str, expected: type[Exception]
) -> None:
    ended: list[str] = []

    def request(operation: str, deadline: Deadline, **arguments: Any) -> Any:
        raise ChildDied(
            f"it ended (exit status 1); the first error in its log: {first_error}",
            phase="ready",
            detail="-",
        )

    child: Any = SimpleNamespace(name="server", request=request, kill=lambda: ended.append("child"))
    port: Any = SimpleNamespace(number=9, release=lambda: ended.append("port"))
    scripts: Any = None
    launch = Launch(child, EngineSpec(), five_seconds, scripts, {"device": "sim"})
    with pytest.raises(
        expected, match=re.escape(first_error.partition(": ")[2].rstrip("."))
    ) as caught:
        start_server(launch, port)
    assert ended == ["child", "port"]
    if isinstance(caught.value, Unsupported):
        of_the_device = "platform" in first_error or "Capability" in first_error
        assert caught.value.cause is (Cause.HARNESS if of_the_device else Cause.RELEASE)


class OneAnswer(BaseHTTPRequestHandler):
    """Answers one request per connection and closes it without notice, as uvicorn does after a
    broken handler (status 500)."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(500)
        self.send_header("Content-Length", "0")
        self.end_headers()
        self.rfile.readline()  # the next request, if one comes over this connection, finds it closed
        self.close_connection = True


def test_a_connection_closed_after_an_answer_does_not_affect_later_requests() -> None:
    """Regression: the request after a status 500 failed with "the server broke the connection"."""
    with ThreadingHTTPServer(("127.0.0.1", 0), OneAnswer) as listening:
        listening.daemon_threads = True
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        client = unconnected(listening.server_port)
        assert [client.get("/").status_code for _ in range(3)] == [500] * 3
        client.client.close()
        listening.shutdown()


class LateAnswer(BaseHTTPRequestHandler):
    """Answers after the time that the deadline allows, as the wall clock measures it."""

    def do_GET(self) -> None:
        time.sleep(0.5)
        self.send_response(200)
        self.end_headers()


def test_a_request_ends_by_the_clock_of_its_deadline_only() -> None:
    """Regression: httpx had a timeout of its own, which passed while the controller was stopped."""
    with ThreadingHTTPServer(("127.0.0.1", 0), LateAnswer) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        client = unconnected(
            listening.server_port, lambda phase, seconds: Deadline.after(phase, 0.1, lambda: 0.0)
        )
        assert client.get("/").status_code == 200
        client.client.close()
        listening.shutdown()


def asking(*details: dict[str, Any] | None, **spec: Any) -> tuple[Server, list[str]]:
    """Return a server whose completions have these ``details``, one after the other, and the list
    of prompts that it gets."""
    server, next_details, prompts = unconnected(9, **spec), iter(details), []

    def respond(request: httpx.Request) -> httpx.Response:
        prompts.append(json.loads(request.content)["prompt"])
        return httpx.Response(
            200, json={"usage": {"prompt_tokens": 20, "prompt_tokens_details": next(next_details)}}
        )

    server.client = httpx.Client(base_url=server.root_url, transport=httpx.MockTransport(respond))
    return server, prompts


DETAILS = {"server_options": {"enable_prompt_tokens_details": True}}


def test_cached_tokens_are_counted_in_every_form_of_zero() -> None:
    server, prompts = asking(
        None,
        {"cached_tokens": 96},
        {"cached_tokens": 0},
        {"cached_tokens": 16},
        {"cached_tokens": None},
        **DETAILS,
    )
    assert [server.cached_tokens(text) for text in "abc"] == [0, 16, 0]
    assert prompts[0] == prompts[1] and prompts[2:] == ["a", "b", "c"]  # checked only once


def test_a_version_that_reports_no_cached_tokens_is_not_applicable() -> None:
    """Regression: it returned 0, which means that nothing was cached.

    Up to 0.9 completions never report cached tokens.
    """
    server, _ = asking(None, None, **DETAILS)
    with pytest.raises(Unsupported, match="does not report cached tokens"):
        server.cached_tokens("a")


@pytest.mark.parametrize("options", [{}, {"enable_prompt_tokens_details": False}])
def test_cached_tokens_need_a_server_that_reports_them(options: dict[str, bool]) -> None:
    server, _ = asking(server_options=options)
    with pytest.raises(UsageError, match="enable_prompt_tokens_details"):
        server.cached_tokens("a")


def test_an_error_in_a_stream_is_raised() -> None:
    """Regression: KeyError: 'choices'. The status of a stream is sent before its errors."""
    server = unconnected(9)
    lines = ['{"choices": []}', '{"object": "error", "message": "the parser broke"}', "[DONE]"]
    text = "".join(f"data: {line}\n\n" for line in lines)
    server.client = httpx.Client(
        base_url=server.root_url,
        transport=httpx.MockTransport(lambda request: httpx.Response(200, text=text)),
    )
    with pytest.raises(RemoteError, match="the parser broke"):
        server.answers([{"role": "user", "content": "Hello"}], stream=True)
