"""Lets a story happen to a server and checks its history.

Every request ends once, with its own text or an error. /health is honest in time. The metrics agree with what was asked. What ends leaves nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx

from ...checkpoints.adapters import Adapter
from ...dialogue.script import Script
from ...engines.http import listeners
from ...engines.server import Server
from ...errors import ChildError, UsageError
from ...processes import process_tree
from ...states.requests import BROKEN, COMPLETE, CUT, OPEN, SILENT, Stream, ask
from ...states.servers import wait_for_end
from .story import Action, Story

HEALTH_S = 2
"""``VLLM_HEALTH_CHECK_TIMEOUT`` of the server, in seconds."""
WATCH_S = HEALTH_S + 4.0
"""Time in which /health must notice that the core is stopped or gone."""
REQUEST_S = 30.0
"""Time in which a request must begin or end while the server works."""
GONE_S = 8.0
"""Time in which a request must end once the engine behind it is gone."""
END_S = 45.0
"""Time in which a server must end after SIGTERM; it may drain for 30 s."""
LEAVE_S = 10.0
TOKENS = 24
ADAPTER = Adapter("mine", rank=4)
_SUCCESS = "vllm:request_success_total"
_ANSWERED = ("stop", "length")
_BUSY = ("vllm:num_requests_running", "vllm:num_requests_waiting")


@dataclasses.dataclass(frozen=True)
class Problem:
    """What is wrong with a history. ``kind``: in a few words."""

    kind: str
    words: str


@dataclasses.dataclass
class _Sent:
    """A streamed request. ``text``: the answer it must get. ``aborted``: whether the story aborted it."""

    stream: Stream
    text: str
    aborted: bool = False


class History:
    """One server, and what happened to it in a story."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.problems: list[Problem] = []
        self._sent: list[_Sent] = []
        self._numbers = itertools.count()
        self._complete = 0
        self._asleep = self._loaded = self._stopped = False
        self._end: Action | None = None
        self._before = self._total(_SUCCESS, *_ANSWERED)
        self._port = httpx.URL(server.root_url).port or 0
        self._segments: set[str] = set()

    def run(self, story: Story) -> list[Problem]:
        """Let the story happen. Returns all problems."""
        for action in story.actions:
            if self._end is None:
                _ACTS[action](self)
        if self._end is None:
            self._finish()
        return self.problems

    def _note(self, kind: str, words: str) -> None:
        self.problems.append(Problem(kind, words))

    @property
    def _works(self) -> bool:
        return not (self._asleep or self._stopped)

    def stream(self) -> None:
        if not self._works:
            return
        text = f"answer {next(self._numbers)} of its own. "
        said = Script.text(text, end=False).prompt("Hello")
        sent = _Sent(Stream(self.server, TOKENS, prompt=said, temperature=0), (text * TOKENS)[:TOKENS])
        if sent.stream.wait_for_first(REQUEST_S):
            self._sent.append(sent)
        else:
            self._note("a stream does not begin", sent.stream.outcome(0))

    def ask(self) -> None:
        if self._works:
            status = ask(self.server, "/v1/completions", tokens=1, wait_s=REQUEST_S)
            self._expect_answer(status, "a request")

    def _expect_answer(self, status: str, what: str) -> None:
        self._complete += status == "200"
        if status != "200":
            self._note(f"{what} is not answered", f"{status} instead of 200")

    def abort(self) -> None:
        for sent in self._sent:
            if not sent.aborted:
                sent.stream.abort()
                sent.aborted = True
                return

    def reset(self) -> None:
        if self._works:
            self._maintain("reset of the prefix cache", self.server.reset_prefix_cache)

    def sleep(self) -> None:
        if self._works and self.server.spec.extra.get("enable_sleep_mode"):
            self._await_streams()  # vLLM asks for an idle engine
            self._maintain("sleep", self.server.sleep)
            self._asleep = True

    def wake(self) -> None:
        if self._asleep and not self._stopped:
            self._maintain("wake-up", self.server.wake_up)
            self._asleep = False
            self.ask()

    def load(self) -> None:
        if self._works and not self._loaded:
            self._maintain("load of an adapter", lambda: self.server.load_adapter(ADAPTER))
            self._loaded = True
            self._expect_answer(self._ask_adapter(), "a request with an adapter")

    def unload(self) -> None:
        if self._works and self._loaded:
            self._maintain("unload of an adapter", lambda: self.server.unload_adapter(ADAPTER.name))
            self._loaded = False
            if (status := self._ask_adapter()) != "404":
                self._note("an unloaded adapter is not unknown", f"{status} instead of 404")
                self._complete += status == "200"

    def _ask_adapter(self) -> str:
        body = {"model": ADAPTER.name, "prompt": "Hello", "max_tokens": 1}
        try:
            return str(self.server.client.post("/v1/completions", json=body, timeout=REQUEST_S).status_code)
        except httpx.TimeoutException:
            return SILENT
        except httpx.TransportError:
            return BROKEN

    def _maintain(self, what: str, call: Callable[[], None]) -> None:
        try:
            call()
        except ChildError as error:
            self._note(f"{what} fails", str(error.args[0])[:300])

    def stop(self) -> None:
        if not self._stopped:
            self.server.signal(signal.SIGSTOP, "core")
            self._stopped = True
            self._watch_health("while the core is stopped")

    def resume(self) -> None:
        if self._stopped:
            self.server.signal(signal.SIGCONT, "core")
            self._stopped = False

    def _watch_health(self, when: str) -> None:
        end = time.monotonic() + WATCH_S
        while time.monotonic() < end:
            if ask(self.server, "/health", wait_s=WATCH_S) != "200":
                return
            time.sleep(0.2)
        self._note(f"/health says 200 {when}", f"for {WATCH_S:g} s")

    def kill_core(self) -> None:
        self._kill(Action.KILL_CORE, "core", "after the core was killed")

    def kill_worker(self) -> None:
        self._kill(Action.KILL_WORKER, "worker", "after a worker was killed")

    def _kill(self, action: Action, role: str, when: str) -> None:
        if not any(process.alive and process.role == role for process in self.server.processes()):
            return
        self.server.signal(signal.SIGKILL, role)
        self._end = action
        self._watch_health(when)
        if ask(self.server, "/v1/completions", tokens=1, wait_s=GONE_S) == SILENT:
            self._note(f"a request has no answer {when}", f"within {GONE_S:g} s")
        self._expect_ends(when)

    def _expect_ends(self, when: str) -> None:
        """Every stream ends, with an error or cut, and what it said is its own."""
        for sent in self._sent:
            if sent.stream.outcome(GONE_S) == OPEN:
                self._note(f"a stream does not end {when}", f"within {GONE_S:g} s")
            self._check_text(sent)

    def _check_text(self, sent: _Sent) -> None:
        if not sent.text.startswith(sent.stream.text):
            self._note("a stream has another text than its own", f"{sent.stream.text!r} instead of {sent.text!r}")

    def kill_server(self) -> None:
        self._begin_end(Action.KILL_SERVER)
        self.server.signal(signal.SIGKILL)
        wait_for_end(self.server.child, END_S)
        self._expect_nothing_left("after the server was killed")

    def term(self) -> None:
        self._terminate(Action.TERM, "at SIGTERM")

    def term_twice(self) -> None:
        self._terminate(Action.TERM_TWICE, "at a second SIGTERM")

    def _terminate(self, action: Action, when: str) -> None:
        self.resume()
        self._begin_end(action)
        self.server.signal(signal.SIGTERM)
        if action is Action.TERM_TWICE:
            time.sleep(0.1)
            with contextlib.suppress(UsageError):  # it has ended
                self.server.signal(signal.SIGTERM)
        wait_for_end(self.server.child, END_S)
        if self.server.child.alive:
            self._note(f"the server does not end {when}", f"within {END_S:g} s")
            return
        for sent in self._sent:
            outcome = sent.stream.outcome(REQUEST_S)
            if outcome == CUT and not sent.aborted and action is Action.TERM:
                self._note(f"a stream is cut {when}", f"after {sent.stream.received} of {TOKENS} tokens")
            self._check_text(sent)
        self._expect_nothing_left(when)

    def _begin_end(self, action: Action) -> None:
        self._end = action
        self.server.processes()
        self._segments = process_tree.shared_memory(self.server.child.processes())

    def _expect_nothing_left(self, when: str) -> None:
        others = [process for process in self.server.child.processes() if not process_tree.is_helper(process)]
        running = {process.pid for process in process_tree.wait_until_gone(others, LEAVE_S)}
        left = sorted({info.role for info in self.server.processes() if info.pid in running})
        if left:
            self._note(f"{', '.join(left)} left {when}", f"still running after {LEAVE_S:g} s")
        if listeners.on_port(self._port):
            self._note(f"port left {when}", "something still listens")
        if any(Path(segment).exists() for segment in self._segments):
            self._note(f"shared memory left {when}", ", ".join(sorted(self._segments)))

    def _await_streams(self) -> None:
        """Every stream ends with all of its own text."""
        for sent in self._sent:
            outcome = sent.stream.outcome(REQUEST_S)
            if sent.aborted and outcome in (CUT, COMPLETE):
                self._complete += outcome == COMPLETE
            elif outcome != COMPLETE:
                self._note(f"a stream is not complete: {outcome}", f"{sent.stream.received} of {TOKENS} tokens")
            else:
                self._complete += 1
                if sent.stream.text != sent.text:
                    self._note("a stream has another text than its own", f"{sent.stream.text!r}, not {sent.text!r}")
            self._check_text(sent)
        self._sent = []

    def _finish(self) -> None:
        """End a story in which the server still works, and compare its metrics with what was asked."""
        self.resume()
        self.wake()
        self._await_streams()
        self.unload()
        if (health := ask(self.server, "/health")) != "200":
            self._note("/health is not 200 though nothing is wrong", health)
            return
        self.ask()
        if not self.problems:
            self._compare_metrics()

    def _compare_metrics(self) -> None:
        end = time.monotonic() + LEAVE_S
        while time.monotonic() < end and (busy := sum(map(self._total, _BUSY))) > 0:
            time.sleep(0.2)
        if busy > 0:
            self._note("metrics count requests that have ended", f"{busy:g} run or wait")
        counted = self._total(_SUCCESS, *_ANSWERED) - self._before
        if counted < self._complete:
            self._note("metrics count fewer answers than there were", f"{counted:g} instead of {self._complete}")

    def _total(self, name: str, *reasons: str) -> float:
        samples = self.server.metrics().of(name)
        return sum(
            value for labels, value in samples.items() if not reasons or dict(labels).get("finished_reason") in reasons
        )


_ACTS: Mapping[Action, Callable[[History], None]] = {
    Action.STREAM: History.stream,
    Action.ASK: History.ask,
    Action.ABORT: History.abort,
    Action.RESET: History.reset,
    Action.SLEEP: History.sleep,
    Action.WAKE: History.wake,
    Action.LOAD: History.load,
    Action.UNLOAD: History.unload,
    Action.STOP: History.stop,
    Action.CONTINUE: History.resume,
    Action.KILL_CORE: History.kill_core,
    Action.KILL_WORKER: History.kill_worker,
    Action.KILL_SERVER: History.kill_server,
    Action.TERM: History.term,
    Action.TERM_TWICE: History.term_twice,
}
