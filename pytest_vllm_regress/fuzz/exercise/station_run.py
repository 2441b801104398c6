"""Runs the exercise in one environment: one station after the other, act by act.

An engine that dies is an answer, and the next act gets a new one. One that hangs ends its station,
since each further act would wait as long.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from ...engines.http.health import Metrics
from ...engines.http.transport import ENDING_S
from ...engines.inputs.script import Script
from ...engines.server import Server
from ...engines.session import Session
from ...engines.spec import EngineSpec, Front, front_named
from ...errors import ChildDied, DeadlineExceeded, RegressError, ScriptError, Unsupported
from ...util.codec import encode
from ...util.deadline import Deadline
from ..kept import kept_engine
from .differences import ERROR, FAILED, LEFTOVERS
from .http_answers import OF_TIME, added_up, events_of, normalised
from .workload import Act, Exchange, Item, Station, options_of, prompt_of

HOST = "vllm_regress_target.hosts.exercise"
ACT_S = 90.0
"""Deadline for an act in seconds; most take one or two."""
USER = "exercise"
_MAX_RESTARTS = 3
EXCHANGE_S = 30.0
_SETTLING_S = 2.0
_PAUSE_S = 0.05
_MAX_TEXT = 2000
_DRAWING = ("/completions", "/responses", "/messages")
"""Routes whose answers are drawn at random unless the temperature is 0."""
KILL_CORE, TERMINATE = _SIGNALS = ("kill core", "terminate")
"""Calls that are signals."""
_NOTICED_S = 1.0
"""Seconds until the front process has noticed that its core is dead."""
_PROCESS_ALONE = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""The core runs in the engine's own process, so that its steps can be counted."""


@dataclass
class StationRun:
    """A station in one environment. ``answers``: by act and request."""

    session: Session
    environment: str
    station: Station
    answers: dict[str, Any] = field(default_factory=dict)

    def run(self) -> dict[str, Any]:
        """Return the answers; none if this release has no such engine."""
        target = self.session.target(self.environment)
        engine = kept_engine(self.session, target, self._spec(), self._front(), USER)
        failures = 0
        for act in self.station.acts:
            if failures > _MAX_RESTARTS:
                break
            try:
                running = engine.get()
            except Unsupported:
                return {}
            except RegressError as error:
                self.answers[f"{act.name}/start"] = {ERROR: _described(error)}
                if isinstance(error, DeadlineExceeded):
                    break
                failures += 1
                continue
            try:
                self._act(running, act)
            except RegressError as error:
                self.answers[f"{act.name}/end"] = {ERROR: _described(error)}
                failures += 1
                engine.drop()
                if isinstance(error, DeadlineExceeded):
                    break
        with contextlib.suppress(RegressError):
            engine.drop()
        return self.answers

    def _front(self) -> Front:
        return front_named("offline" if self.station.front == "stepped" else self.station.front)

    def _spec(self) -> EngineSpec:
        fields = dict(encode(self.station.spec))
        if self.station.front == "stepped":
            fields["env"] = _PROCESS_ALONE
        return EngineSpec.create(**fields)

    def _act(self, running: Any, act: Act) -> None:
        if act.call in _SIGNALS:
            self.answers[act.name] = _signalled(running, act.call)
            return
        if isinstance(running, Server):
            self._served(running, act)
        elif act.call:
            function = "called" if self.station.front == "async" else "called_offline"
            arguments = {"method": act.call, "arguments": dict(encode(act.arguments))}
            self.answers[act.name] = self._ask(running, function, **arguments)
        else:
            function = "streamed" if self.station.front == "async" else "stepped"
            requests = [_request(running, item) for item in act.items()]
            reply = self._ask(running, function, requests=requests)
            for name, answer in reply.pop("answers").items():
                self.answers[f"{act.name}/{name}"] = answer
            self.answers |= {f"{act.name}/{name}": {name: value} for name, value in reply.items()}
        held = running.held_requests()
        kept = Counter(violation.container for violation in held.violations) if held else {}
        self.answers[f"{act.name}/left"] = {LEFTOVERS: dict(sorted(kept.items()))}

    def _ask(self, running: Any, function: str, **arguments: Any) -> Any:
        deadline = Deadline.after("request", ACT_S)
        return running.child.request(
            "call", deadline, file=HOST, function=function, arguments=arguments
        )

    def _served(self, server: Server, act: Act) -> None:
        hidden = {
            server.root_url: "URL",
            server.root_url.rpartition("/")[2]: "HOST",
            server.model: "MODEL",
            server.api_key: "KEY",
            self.session.target(self.environment).versions["vllm"]: "VERSION",
        }
        before = _counters(server)
        for number, reply in enumerate(asyncio.run(_exchanged(server, act)), 1):
            self.answers[f"{act.name}/{number}"] = normalised(reply, hidden)
        try:
            server.scripts.check()
        except ScriptError as error:  # which is one more answer of the engine
            problem = str(error).partition("could not be followed")[2]
            self.answers[f"{act.name}/scripts"] = {"text": problem[:300]}
        after = _counters(server) or before
        changes = {name: round(value - before.get(name, 0), 3) for name, value in after.items()}
        closed = any(one.close_after for one in act.exchanges)
        counted = {
            name: change
            for name, change in changes.items()
            if change and ("request_success" in name or not closed)
        }
        self.answers[f"{act.name}/metrics"] = {"metrics": counted}


def _signalled(running: Any, name: str) -> dict[str, Any]:
    """Kill the core and return nothing, or terminate everything and return the exit code."""
    if name == KILL_CORE:
        running.signal(signal.SIGKILL, "core")
        time.sleep(_NOTICED_S)
        return {}
    running.signal(signal.SIGTERM)
    return {"exit": running.wait_for_exit(ENDING_S, all_processes=True)}


def _request(running: Any, item: Item) -> dict[str, Any]:
    """Return a request as the target takes it."""
    names = ("id", "kind", "at", "abort_at", "end", "after", "priority", "task", "slow")
    lora = item.lora
    return {
        **{name: getattr(item, name) for name in names},
        "prompt": prompt_of(item),
        "options": options_of(item),
        "model": str(running.started.kwargs["model"]),
        "adapter": lora
        and {"name": lora.name, "number": lora.seed, "path": running.adapter_path(lora)},
    }


def _described(error: RegressError) -> list[str]:
    """Return an error without what depends on time."""
    kind = "hang" if isinstance(error, DeadlineExceeded) else type(error).__name__
    if isinstance(error, ChildDied):
        kind = "death"
    name = getattr(error, "type_name", "")
    return [kind, name or str(error.args[0]).partition("\n")[0][:200]]


def _counters(server: Server) -> dict[str, float]:
    """Return the server's counters once they have settled."""
    counted: dict[str, float] = {}
    end = time.monotonic() + _SETTLING_S
    while time.monotonic() < end:
        try:
            again = dict(_samples(server.get("/metrics").text))
        except (RegressError, ValueError):  # a server whose core was killed
            return {}
        if again == counted:
            break
        counted = again
        time.sleep(_PAUSE_S)
    return counted


def _samples(text: str) -> Iterator[tuple[str, float]]:
    for (name, labels), value in Metrics.parse(text).samples.items():
        if name.startswith("vllm:") and not OF_TIME.search(name):
            shown = ", ".join(f"{k}={v}" for k, v in labels if k not in ("model_name", "engine"))
            yield f"{name} {shown}".strip(), value


async def _exchanged(server: Server, act: Act) -> list[dict[str, Any]]:
    """Send the exchanges of an act and return their answers."""
    async with server.async_client(timeout=EXCHANGE_S) as client:
        calls = [_exchange(client, server.model, one) for one in act.exchanges]
        if act.together:
            return list(await asyncio.gather(*calls))
        return [await call for call in calls]


async def _exchange(client: httpx.AsyncClient, model: str, exchange: Exchange) -> dict[str, Any]:
    method, _, path = exchange.to.partition(" ")
    content: dict[str, Any] = {}
    if exchange.text:
        content = {"content": exchange.text}
    elif method == "POST":
        # In ASCII: httpx encodes as UTF-8, which lone surrogates are not.
        content = {"content": json.dumps(_body(exchange, model))}
    headers = {"Content-Type": "application/json", **exchange.headers}
    try:
        async with client.stream(method, path, headers=headers, **content) as response:
            return await _answer(response, exchange)
    except httpx.TimeoutException as error:
        return {ERROR: ["hang", type(error).__name__]}
    except httpx.TransportError as error:
        return {ERROR: ["broken connection", type(error).__name__]}


async def _answer(response: httpx.Response, exchange: Exchange) -> dict[str, Any]:
    kind = response.headers.get("content-type", "").partition(";")[0]
    answer: dict[str, Any] = {"status": response.status_code, "type": kind}
    if kind != "text/event-stream":
        text = (await response.aread()).decode(errors="replace")
        with contextlib.suppress(ValueError):
            return {**answer, "body": json.loads(text)}
        return {**answer, "text": text[:_MAX_TEXT]}
    lines = []
    async for line in response.aiter_lines():
        lines.append(line)
        if exchange.close_after and len(lines) > 2 * exchange.close_after:
            return {**answer, "closed": True}
    events = list(events_of(lines))
    if any(isinstance(data, dict) and ERROR in data for _, data in events):
        answer[FAILED] = True
    return {**answer, **added_up(events)}


def _body(exchange: Exchange, model: str) -> dict[str, Any]:
    """Return the body with the model's name and what the model says."""
    body: dict[str, Any] = json.loads(json.dumps(encode(exchange.body)))
    if exchange.model:
        body = {"model": model, **body}
    if exchange.to.endswith(_DRAWING):
        body.setdefault("temperature", 0)
    if exchange.said:
        first, *further = (Script.text(text, end=exchange.ends) for text in exchange.said)
        for name in ("prompt", "input"):
            if isinstance(body.get(name), str):
                body[name] = first.prompt(body[name], *further)
                return body
        last = (body.get("messages") or body["input"])[-1]
        last["content"] = first.prompt(str(last["content"]), *further)
    return body
