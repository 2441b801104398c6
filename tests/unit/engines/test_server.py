"""What a server's error statuses are taken for; the server here is httpx's own stand-in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from pytest_vllm_regress.engines.server import Server
from pytest_vllm_regress.engines.spec import EngineSpec
from pytest_vllm_regress.errors import Kind, RemoteError
from pytest_vllm_regress.util.deadline import Deadline


def server(answer: int, health: int | type[httpx.TransportError]) -> Server:
    """Answers every request with the status ``answer``, and /health with ``health`` or that error."""

    def respond(request: httpx.Request) -> httpx.Response:
        if request.url.path != "/health":
            return httpx.Response(answer, json={"error": "said"})
        if isinstance(health, int):
            return httpx.Response(health)
        raise health("no answer")

    def failure(message: str, *, phase: str, died: bool, **rest: Any) -> RemoteError:
        return RemoteError(message, phase=phase, engine_died=died)

    child = SimpleNamespace(failure=failure, log_tail=lambda: "", replied=lambda phase: None)
    scripts = SimpleNamespace(admit=lambda body: None, check=lambda: None)

    def deadline_for(phase: str, seconds: float | None = None) -> Deadline:
        return Deadline.after(phase, 5)

    made = Server(child, EngineSpec(), SimpleNamespace(number=9), "key", deadline_for, scripts)  # type: ignore[arg-type]
    made.client = httpx.Client(base_url=made.root_url, transport=httpx.MockTransport(respond))
    return made


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
def test_an_engine_is_dead_when_its_server_says_so(
    answer: int, health: int | type[httpx.TransportError], kind: Kind
) -> None:
    """An engine core that is about to end has processes still; a request that failed harms no engine that is well."""
    with pytest.raises(RemoteError, match=f"HTTP {answer}") as caught:
        server(answer, health).check()
    assert caught.value.kind is kind
