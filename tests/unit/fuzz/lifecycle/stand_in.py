"""A stand-in for a server: one that is right, and faults that are planted in it.

It has no process and no port; a signal changes its state.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from pytest_vllm_regress.engines.checkpoints.adapters import Adapter
from pytest_vllm_regress.engines.http.health import Metrics
from pytest_vllm_regress.engines.running import ProcessInfo
from pytest_vllm_regress.engines.spec import EngineSpec
from pytest_vllm_regress.errors import HeldRequests, Violation
from pytest_vllm_regress.fuzz.lifecycle.streams import TOKENS
from pytest_vllm_regress.target_site.vllm_regress_target import script_format as script

_RESTS = ("/sleep", "/wake_up", "/pause", "/resume")


class _Child:
    """The front process."""

    pid = 1

    def __init__(self) -> None:
        self.alive = True
        self.exit_status = 0

    def processes(self) -> list[Any]:
        return []

    def pause(self, seconds: float) -> None:
        return


class StandIn:
    """Answers like a server of vLLM. ``faults``: names of what it does wrong."""

    model = "text"
    root_url = "http://127.0.0.1:1"

    def __init__(self, *faults: str) -> None:
        self.spec = EngineSpec.create(extra={"enable_sleep_mode": True, "enable_lora": True})
        self.child = _Child()
        self.client = httpx.Client(
            base_url=self.root_url, transport=httpx.MockTransport(self._answer)
        )
        self.faults, self.answered, self.loaded, self.core = faults, 0, False, "runs"
        self.sleeping, self.paused, self.weights = False, False, 0
        self.cached: set[tuple[str, int, str]] = set()

    def signal(self, number: int, process: str = "server") -> None:
        if process == "server":
            self.child.alive = False
        else:
            self.core = {signal.SIGSTOP: "stopped", signal.SIGCONT: "runs"}.get(
                signal.Signals(number), "dead"
            )

    def processes(self) -> list[ProcessInfo]:
        return [
            ProcessInfo(number, role, role, "")  # type: ignore[arg-type]
            for number, role in ((1, "server"), (2, "core"), (3, "worker"))
        ]

    def held_requests(self) -> HeldRequests | None:
        kept = [Violation("scheduler.requests", "one")]
        return HeldRequests(kept) if "requests are kept" in self.faults else None

    def metrics(self) -> Metrics:
        running = 1.0 if "requests stay counted" in self.faults else 0.0
        counted = 0.0 if "answers are not counted" in self.faults else float(self.answered)
        return Metrics(
            {
                ("vllm:num_requests_running", ()): running,
                ("vllm:num_requests_waiting", ()): 0.0,
                ("vllm:request_success_total", (("finished_reason", "length"),)): counted,
            }
        )

    def reset_prefix_cache(self) -> None:
        if "the cache stays" not in self.faults:
            self.cached.clear()

    def load_adapter(self, adapter: Adapter, folder: Path) -> None:
        self.loaded = True
        self.weights = 0 if "weights are not told apart" in self.faults else adapter.seed

    def unload_adapter(self, name: str) -> None:
        self.loaded = "adapters stay" in self.faults

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if not self.child.alive:
            raise httpx.ConnectError("refused")
        if self.core != "runs" and "health lies" not in self.faults:
            return httpx.Response(503)
        if request.method == "GET":
            return self._state(request.url.path)
        if request.url.path in _RESTS:
            return self._rest(request.url)
        body = json.loads(request.content)
        if self.core != "runs":
            return httpx.Response(500)
        if (self.sleeping or self.paused) and "requests run during a rest" not in self.faults:
            return httpx.Response(503)
        if body["model"] == "mine" and not self.loaded:
            return httpx.Response(404)
        self.answered += 1
        if not body.get("stream"):
            return httpx.Response(
                200, json={"choices": [{"text": "a"}], "usage": self._usage(body)}
            )
        return httpx.Response(200, content=b"".join(self._events(body)))

    def _state(self, path: str) -> httpx.Response:
        states = {
            "/is_sleeping": self.sleeping,
            "/is_paused": self.paused or "it counts as paused" in self.faults,
        }
        return httpx.Response(200, json={path[1:]: states[path]} if path in states else {})

    def _rest(self, url: httpx.URL) -> httpx.Response:
        if "it cannot pause" in self.faults and url.path in ("/pause", "/resume"):
            return httpx.Response(404)
        if url.path == "/sleep":
            self.sleeping = True
            self.cached.clear()
        elif url.path == "/wake_up":
            self.sleeping = "tags" in url.params
        else:
            self.paused = url.path == "/pause"
        return httpx.Response(200)

    def _usage(self, body: dict[str, Any]) -> dict[str, Any]:
        key = body["model"], self.weights if body["model"] == "mine" else 0, body["prompt"]
        cached = len(body["prompt"]) // 16 * 16 if key in self.cached else 0
        self.cached.add(key)
        return {"prompt_tokens_details": {"cached_tokens": cached}}

    def _events(self, body: dict[str, Any]) -> Iterator[bytes]:
        payload = body["prompt"].partition(script.START)[2].partition(script.END)[0]
        text = "".join(
            str(bytes([int(token)]).decode())
            for ((token, _),) in script.decode(payload)[0].steps
            if isinstance(token, int)
        )
        if "texts are exchanged" in self.faults:
            text = "x" + text
        for letter in (text * TOKENS)[:TOKENS]:
            yield (
                b"data: "
                + json.dumps({"choices": [{"index": 0, "text": letter}]}).encode()
                + b"\n\n"
            )
        if "streams are cut" not in self.faults:
            end = {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}
            yield b"data: " + json.dumps(end).encode() + b"\n\ndata: [DONE]\n\n"
