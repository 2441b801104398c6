"""A server of completions that is right, without sockets or processes, and faults that can be
planted in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx

from pytest_vllm_regress.engines.running import ProcessInfo
from pytest_vllm_regress.fuzz.api.servers import AskedServer, ServerStarter
from pytest_vllm_regress.surveys.states.growth import Growth, measure_growth

LIMITS = {
    "max_tokens": (1, 512),
    "priority": (-(2**63), 2**63 - 1),
    "n": (1, 4),
    "top_k": (-1, 2**31 - 1),
}
TRACEBACK = """ERROR 11-24 15:36:26 [serving.py:1] Traceback (most recent call last):
ERROR 11-24 15:36:26 [serving.py:1]   File "/x/site-packages/vllm/entrypoints/serving.py", line 7, in create
ERROR 11-24 15:36:26 [serving.py:1]     pack(priority)
ERROR 11-24 15:36:26 [serving.py:1] OverflowError: int too big to convert
"""
DESCRIPTION = {
    "openapi": "3.1.0",
    "paths": {
        "/v1/completions": {
            "post": {
                "requestBody": {
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/Request"}}
                    }
                }
            }
        },
        "/health": {"get": {}},
        "/sleep": {"post": {}},
    },
    "components": {
        "schemas": {
            "Request": {
                "type": "object",
                "properties": {
                    "model": {"type": "string"},
                    "prompt": {"type": "string"},
                    "stream": {"type": "boolean"},
                    **{name: {"type": "integer"} for name in LIMITS},
                },
            }
        }
    },
}
Fault = Callable[["StandIn", dict[str, Any]], httpx.Response | None]
"""Answers a request wrongly, or returns None."""


class StandIn:
    """One server. ``dead`` and ``stuck``: what a fault has made of its engine."""

    def __init__(self, fault: Fault | None = None) -> None:
        self.dead = self.stuck = self.killed = False
        self.logged, self.memory = "", 100_000_000
        self.held: tuple[str, ...] = ()
        self.requests: list[str] = []
        self._fault = fault

    def handle(self, request: httpx.Request) -> httpx.Response:
        if self.killed:
            raise httpx.ConnectError("refused")
        if request.url.path == "/openapi.json":
            return httpx.Response(200, json=DESCRIPTION)
        if request.url.path == "/health":
            return httpx.Response(503 if self.dead else 200)
        if self.dead:
            return httpx.Response(500, json={"error": {"message": "EngineDeadError", "code": 500}})
        if self.stuck:
            raise httpx.ReadTimeout("no answer")
        if request.method != "POST" or request.url.path != "/v1/completions":
            return httpx.Response(404)
        self.requests.append(request.content.decode())
        return self._completion(request.content)

    def _completion(self, content: bytes) -> httpx.Response:
        try:
            body = json.loads(content)
        except (ValueError, RecursionError):
            return refused("no JSON")
        if not isinstance(body, dict):
            return refused("no object")
        if self._fault and (answer := self._fault(self, body)):
            return answer
        if body.get("model") != "m" or not isinstance(body.get("prompt"), str):
            return refused("model or prompt")
        for name, (least, most) in LIMITS.items():
            value = body.get(name, 1)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                return refused(name)
        if body.get("stream", False) not in (True, False):
            return refused("stream")
        return (
            streamed([chunk("length"), "[DONE]"])
            if body.get("stream")
            else httpx.Response(200, json=chunk("length"))
        )


def refused(words: str) -> httpx.Response:
    return httpx.Response(400, json={"error": {"message": words, "code": 400}})


def chunk(reason: object) -> dict[str, Any]:
    choice = {"index": 0, "text": "a", "logprobs": None, "finish_reason": reason}
    return {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}


def streamed(events: list[Any]) -> httpx.Response:
    texts = [event if isinstance(event, str) else json.dumps(event) for event in events]
    content = "".join(f"data: {text}\n\n" for text in texts).encode()
    return httpx.Response(200, content=content, headers={"content-type": "text/event-stream"})


class Log:
    def __init__(self, server: StandIn) -> None:
        self._server = server

    def restart(self) -> None:
        self._server.logged = ""

    def text(self) -> str:
        return self._server.logged


class StandInServer(AskedServer):
    """``stopped``: called when it is stopped."""

    def __init__(self, server: StandIn, stopped: Callable[[], None]) -> None:
        self.adapter = ""
        self.log = Log(server)  # type: ignore[assignment]
        self.client = httpx.Client(
            base_url="http://stand-in", transport=httpx.MockTransport(server.handle)
        )
        self._stand_in, self._stopped = server, stopped

    def health(self) -> str:
        return "stuck" if self._stand_in.stuck else "idle"

    def held(self) -> tuple[str, ...]:
        held, self._stand_in.held = self._stand_in.held, ()
        return held

    def ended(self) -> str:
        return "killed for its memory" if self._stand_in.killed else ""

    def growth(self, send: Callable[[int], object], requests: int) -> dict[str, Growth]:
        return growth_of(self._stand_in, send, requests)

    def stop(self) -> None:
        self._stopped()
        self.client.close()


class StandInStarter(ServerStarter):
    """Starts stand-ins. ``servers``: those that were started."""

    def __init__(self, fault: Fault | None = None) -> None:
        self.servers: list[StandIn] = []
        self.stopped = 0
        self._fault = fault

    def start(self, name: str) -> AskedServer:
        self.servers.append(StandIn(self._fault))
        return StandInServer(self.servers[-1], self._count_stop)

    def requests(self) -> Iterator[str]:
        return (request for server in self.servers for request in server.requests)

    def _count_stop(self) -> None:
        self.stopped += 1


def growth_of(server: StandIn, send: Callable[[int], object], requests: int) -> dict[str, Growth]:
    """Measure the memory of a stand-in, which is a number."""
    process = SimpleNamespace(processes=lambda: [ProcessInfo(1, "server", "server", "")])
    return dict(
        measure_growth(
            process,  # type: ignore[arg-type]
            send,
            requests=requests,
            warm_up=0,
            read=lambda pid: (server.memory,) * 2,
        )
    )


def keeps_every_request(server: StandIn, body: dict[str, Any]) -> httpx.Response | None:
    server.memory += 1000
    return None


def keeps_a_stream(server: StandIn, body: dict[str, Any]) -> httpx.Response | None:
    if body.get("stream") is True and body.get("n") == 2:
        server.held = ("scheduler.requests",)
    return None


def fills_a_cache(server: StandIn, body: dict[str, Any]) -> httpx.Response | None:
    server.memory += 1000 if len(server.requests) < 400 else 0
    return None


def raises_for_a_huge_priority(server: StandIn, body: dict[str, Any]) -> httpx.Response | None:
    if isinstance(body.get("priority"), int) and body["priority"] >= 2**63:
        server.logged += TRACEBACK
        return httpx.Response(
            500, json={"error": {"message": "int too big to convert", "code": 500}}
        )
    return None


def says_nothing(server: StandIn, body: dict[str, Any]) -> httpx.Response | None:
    return httpx.Response(500, text="Internal Server Error") if body.get("n") == [] else None


def dies_of_a_list(server: StandIn, body: dict[str, Any]) -> httpx.Response | None:
    if body.get("top_k") == []:
        server.dead = True
        return refused("top_k")  # the next request notices it
    return None


def is_stuck_by_a_list(server: StandIn, body: dict[str, Any]) -> httpx.Response | None:
    if body.get("top_k") == []:
        server.stuck = True
        raise httpx.ReadTimeout("no answer")
    return None


def takes_all_memory(server: StandIn, body: dict[str, Any]) -> httpx.Response | None:
    if body.get("n") == 2**31:
        server.killed = True
        raise httpx.RemoteProtocolError("broken")
    return None


def never_answers(server: StandIn, body: dict[str, Any]) -> httpx.Response | None:
    if body.get("stream") == "many":
        raise httpx.ReadTimeout("no answer")
    return None


def breaks_the_connection(server: StandIn, body: dict[str, Any]) -> httpx.Response | None:
    if body.get("prompt") == {}:
        raise httpx.RemoteProtocolError("broken")
    return None


def forgets_the_end(server: StandIn, body: dict[str, Any]) -> httpx.Response | None:
    return (
        streamed([chunk("length")]) if body.get("stream") is True and body.get("n") == 2 else None
    )


def errs_in_the_stream(server: StandIn, body: dict[str, Any]) -> httpx.Response | None:
    if body.get("stream") is True and body.get("n") == 2:
        return streamed(
            [{"error": {"message": "boom", "type": "InternalServerError", "code": 500}}, "[DONE]"]
        )
    return None


def invents_a_reason(server: StandIn, body: dict[str, Any]) -> httpx.Response | None:
    return httpx.Response(200, json=chunk("abandoned")) if body.get("max_tokens") == 0.5 else None


def answers_no_json(server: StandIn, body: dict[str, Any]) -> httpx.Response | None:
    if body.get("n") is None and "n" in body:
        return httpx.Response(200, text="NaN!", headers={"content-type": "application/json"})
    return None
