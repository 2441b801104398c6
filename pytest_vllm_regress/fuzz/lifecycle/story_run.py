"""Lets a story happen to a server and checks its history.

Every request ends once, with its own text or an error. Nothing runs while the engine sleeps or is
paused. The prefix cache holds nothing of other weights, and nothing after a reset or a sleep.
/health is honest in time. The metrics agree with what was asked, and the engine keeps no request
that has ended. What ends leaves nothing.
"""

from __future__ import annotations

import contextlib
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from ...engines.checkpoints.adapters import Adapter
from ...engines.http import listeners
from ...engines.processes import process_tree
from ...engines.server import Server
from ...errors import ChildError, UsageError
from ...surveys.states.requests import SILENT, ask, wait_for_end
from ..finding import Problem
from ..kept import held_requests
from .streams import GONE_S, QUIET_S, REQUEST_S, Streams

HEALTH_S = 2
"""``VLLM_HEALTH_CHECK_TIMEOUT`` of the server, in seconds."""
WATCH_S = HEALTH_S + 4.0
"""Time in which /health must notice that the core is stopped or gone."""
END_S = 45.0
"""Time in which a server must end after SIGTERM; it may drain for 30 s."""
LEAVE_S = 10.0
ADAPTER = Adapter("mine", rank=4)
_SUCCESS = "vllm:request_success_total"
_ANSWERED = ("stop", "length")
_BUSY = ("vllm:num_requests_running", "vllm:num_requests_waiting")


WAKE_UP = "/wake_up"
ABORT, WAIT, KEEP = "abort", "wait", "keep"
"""Modes of a pause: running requests are ended, finished first, or kept until generation is
resumed."""


class RestError(Exception):
    """A request for a rest, or for its end, was not answered with 200."""


class Rest:
    """Sleep and pauses of a server.

    Attributes:
        asleep: whether the engine sleeps. ``partly``: its weights are awake, the KV cache is not.
        paused: mode of the pause; empty without one.
    """

    def __init__(self, server: Server, seconds: float) -> None:
        self._server, self._seconds = server, seconds
        self.asleep = self.partly = False
        self.paused = ""

    @property
    def holds(self) -> bool:
        """Whether no request may run."""
        return self.asleep or bool(self.paused)

    @property
    def words(self) -> str:
        """When nothing may run."""
        if self.partly:
            return "while the KV cache is asleep"
        return "while the engine sleeps" if self.asleep else "while generation is paused"

    def change(self, address: str, **state: Any) -> bool:
        """Begin or end a rest. Returns False if this vLLM cannot.

        Whether waking up ends a pause, is not documented: the server is asked.
        """
        done = self._post(address)
        if done:
            vars(self).update(state)
        if address == WAKE_UP and self.paused and self.reported("paused") is not True:
            self.paused = ""
        return done

    def lies(self) -> str:
        """Return in which way /is_sleeping or /is_paused is wrong; empty if it is right.

        A sleeping engine may count as paused, and a paused one as asleep: a pause is vLLM's sleep
        of level 0.
        """
        when = self.words if self.holds else "while the engine is awake and not paused"
        paused = bool(self.paused)
        for state, holds, other in (
            ("sleeping", self.asleep, paused),
            ("paused", paused, self.asleep),
        ):
            said = self.reported(state)
            if said is not None and said != holds and not other:
                return f"/is_{state} says {str(said).lower()} {when}"
        return ""

    def reported(self, state: str) -> bool | None:
        """Return whether the server says to be ``sleeping`` or ``paused``; None if it says neither."""
        try:
            response = self._server.client.get(f"/is_{state}", timeout=self._seconds)
            return bool(response.json()[f"is_{state}"]) if response.status_code == 200 else None
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return None

    def _post(self, address: str) -> bool:
        """Return False if the server does not have the address.

        Raises ``RestError`` unless it answers 200.
        """
        try:
            response = self._server.client.post(address, json={}, timeout=self._seconds)
        except httpx.HTTPError as error:
            raise RestError(f"{type(error).__name__} after at most {self._seconds:g} s") from error
        if response.status_code not in (200, 404):
            raise RestError(f"HTTP {response.status_code}: {response.text[:200]}")
        return response.status_code == 200


SENTENCE = "The same prompt again, to see whether tokens of it are cached. "


class Prefixes:
    """What the prefix cache may hold of one long prompt: which models may find its blocks there.

    ``owner``: a model with its weights, for example ``mine, weights 2``. ``prompt``: no other
    history of this server has it.
    """

    def __init__(self, server: Server, number: float) -> None:
        self._server = server
        self.prompt = f"Story after {number:g} answers. " + SENTENCE * 4
        self._warm: set[str] = set()
        self._cleared: dict[str, str] = {}

    def clear(self, event: str) -> None:
        """Note that the server has forgotten all prompts."""
        self._cleared.update(dict.fromkeys(self._warm, event))
        self._warm.clear()

    def ask(self, model: str, owner: str, seconds: float) -> tuple[str, int]:
        """Ask with the prompt.

        Return the status, and the number of cached tokens that the answer must not have.
        """
        body = {"model": model, "prompt": self.prompt, "max_tokens": 1, "ignore_eos": True}
        try:
            response = self._server.client.post("/v1/completions", json=body, timeout=seconds)
        except httpx.HTTPError as error:
            return type(error).__name__, 0
        if response.status_code != 200:
            return str(response.status_code), 0
        details = response.json().get("usage", {}).get("prompt_tokens_details") or {}
        cached = int(details.get("cached_tokens") or 0)
        wrong = 0 if owner in self._warm else cached
        self._warm.add(owner)
        return "200", wrong

    def why(self, owner: str) -> str:
        """Return why the server must not have tokens of an owner."""
        return f"after {self._cleared[owner]}" if owner in self._cleared else "of other weights"


class StoryRun:
    """One server, and what happened to it in a story.

    ``do_NAME`` lets the action of this name happen, if it is possible.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.problems: list[Problem] = []
        self._streams = Streams(server, self._note)
        self._complete = 0
        self._loaded = self._stopped = self._has_ended = False
        self._weights = self._done = 0
        self._rest = Rest(server, REQUEST_S)
        self._before = self._total(_SUCCESS, *_ANSWERED)
        self._prefixes = Prefixes(server, self._before)
        self._port = httpx.URL(server.root_url).port or 0
        self._segments: set[str] = set()

    def run(self, actions: Sequence[Enum]) -> list[Problem]:
        """Let the actions happen. Returns all problems."""
        with tempfile.TemporaryDirectory(prefix="vllm-regress-story-") as folder:
            self._folder = Path(folder)
            for action in actions:
                self._done += 1
                if not self._has_ended:
                    getattr(self, f"do_{action.name.lower()}")()
            if not self._has_ended:
                self._finish()
        return self.problems

    def _note(self, kind: str, words: str) -> None:
        self.problems.append(Problem(kind, words, at=self._done))

    @property
    def _runs(self) -> bool:
        """Whether requests are answered."""
        return not (self._rest.holds or self._stopped)

    def do_stream(self) -> None:
        if self._runs:
            self._streams.begin()

    def do_ask(self) -> None:
        if self._runs:
            status = ask(self.server, "/v1/completions", tokens=1, wait_s=REQUEST_S)
            self._expect_answer(status)

    def do_repeat(self) -> None:
        """Ask the model, and the adapter if it is loaded, with a prompt that is the same in the
        whole story."""
        if self._runs:
            self._repeat(self.server.model, "the model")
            if self._loaded:
                self._repeat_adapter()

    def _repeat_adapter(self) -> None:
        self._repeat(ADAPTER.name, f"the adapter with weights {self._weights}")

    def _repeat(self, model: str, owner: str) -> None:
        status, cached = self._prefixes.ask(model, owner, REQUEST_S)
        self._expect_answer(status)
        if cached:
            self._note(f"cached tokens {self._prefixes.why(owner)}", f"{cached} for {owner}")

    def _expect_answer(self, status: str) -> None:
        self._complete += status == "200"
        if status != "200":
            self._note("a request is not answered", f"{status} instead of 200")

    def do_abort(self) -> None:
        self._streams.abort_one()

    def do_reset(self) -> None:
        """Reset the prefix cache.

        Blocks of running requests stay, so the cache counts as empty only if there are none.
        """
        if not (self._stopped or self._rest.asleep):
            idle = not self._streams.any_open()
            if self._maintain("reset of the prefix cache", self.server.reset_prefix_cache) and idle:
                self._prefixes.clear("a reset")

    def do_sleep(self) -> None:
        """Put an idle engine to sleep."""
        if self._can_sleep:
            if self._runs:
                self._complete += self._streams.finish()
            self.do_sleep_busy()

    def do_sleep_busy(self) -> None:
        if self._can_sleep:
            self._rest_by("sleep", "/sleep?level=1", "a sleep", asleep=True, partly=False)

    @property
    def _can_sleep(self) -> bool:
        return bool(self.server.spec.extra.get("enable_sleep_mode")) and not (
            self._rest.asleep or self._stopped
        )

    def do_pause(self) -> None:
        self._pause(ABORT)

    def do_pause_wait(self) -> None:
        """Pause after the running requests, which a rest would keep from ending."""
        if self._runs:
            self._pause(WAIT)

    def do_pause_keep(self) -> None:
        self._pause(KEEP)

    def _pause(self, mode: str) -> None:
        if not self._stopped:
            address = f"/pause?mode={mode}"
            self._rest_by(f"pause ({mode})", address, keeps=mode != ABORT, paused=mode)

    def _rest_by(
        self, what: str, address: str, clears: str = "", keeps: bool = False, **state: Any
    ) -> None:
        """Begin a rest, during which nothing may run.

        ``clears``: words for what empties the prefix cache. ``keeps``: running requests are not
        ended.
        """
        if not keeps:
            self._streams.interrupt()
        if self._change(what, address, **state):
            if clears:
                self._prefixes.clear(clears)
            self._expect_rest()

    def _change(self, what: str, address: str, **state: Any) -> bool:
        """Begin or end a rest. Returns whether the server did it."""
        try:
            if not self._rest.change(address, **state):
                return False
        except RestError as error:
            when = f" {self._rest.words}" if self._rest.holds else ""
            self._note(f"{what} fails{when}", str(error))
            return False
        if lie := self._rest.lies():
            self._note(lie, f"after {what}")
        return True

    def _expect_rest(self) -> None:
        """No request gets a token: neither those that were running nor a new one."""
        if more := self._streams.tokens_at_rest():
            self._note(f"requests run {self._rest.words}", f"{more} tokens in {QUIET_S:g} s")

    def do_wake_weights(self) -> None:
        asleep = self._rest.asleep and not (self._rest.partly or self._stopped)
        address = f"{WAKE_UP}?tags=weights"
        if asleep and self._change("wake-up of the weights", address, partly=True):
            self._expect_rest()

    def do_wake(self) -> None:
        if self._rest.asleep and not self._stopped:
            self._change("wake-up", WAKE_UP, asleep=False, partly=False)
            self.do_ask()

    def do_resume(self) -> None:
        may = self._rest.holds and not self._stopped
        if may and self._change("resume", "/resume", paused=""):
            if self._rest.holds:
                self._expect_rest()
            self.do_ask()

    def do_load(self) -> None:
        if self._runs and not self._loaded:
            self._load()

    def do_replace(self) -> None:
        """Unload the adapter, and load other weights under its name and from its folder."""
        if self._runs and self._loaded:
            self._drop_adapter()
            self._weights += 1
            self._load()

    def _load(self) -> None:
        adapter = replace(ADAPTER, seed=self._weights)
        load = partial(self.server.load_adapter, adapter, folder=self._folder / ADAPTER.name)
        self._maintain("load of an adapter", load)
        self._loaded = True
        self._repeat_adapter()

    def _drop_adapter(self) -> None:
        unload = partial(self.server.unload_adapter, ADAPTER.name)
        self._maintain("unload of an adapter", unload)

    def do_unload(self) -> None:
        if self._runs and self._loaded:
            self._drop_adapter()
            self._loaded = False
            status = ask(
                self.server, "/v1/completions", tokens=1, wait_s=REQUEST_S, model=ADAPTER.name
            )
            if status != "404":
                self._note("an unloaded adapter is not unknown", f"{status} instead of 404")
                self._complete += status == "200"

    def _maintain(self, what: str, call: Callable[[], None]) -> bool:
        """Return whether the server did it."""
        try:
            call()
        except ChildError as error:
            self._note(f"{what} fails", str(error.args[0])[:300])
            return False
        return True

    def do_stop(self) -> None:
        if not self._stopped:
            self.server.signal(signal.SIGSTOP, "core")
            self._stopped = True
            self._watch_health("while the core is stopped")

    def do_continue(self) -> None:
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

    def do_kill_core(self) -> None:
        self._kill("core", "after the core was killed")

    def do_kill_worker(self) -> None:
        self._kill("worker", "after a worker was killed")

    def _kill(self, role: str, when: str) -> None:
        if not any(process.alive and process.role == role for process in self.server.processes()):
            return
        self.server.signal(signal.SIGKILL, role)
        self._has_ended = True
        self._watch_health(when)
        if ask(self.server, "/v1/completions", tokens=1, wait_s=GONE_S) == SILENT:
            self._note(f"a request has no answer {when}", f"within {GONE_S:g} s")
        self._streams.expect_ends(when)

    def do_kill_server(self) -> None:
        self._begin_end()
        self.server.signal(signal.SIGKILL)
        wait_for_end(self.server.child, END_S)
        self._expect_nothing_left("after the server was killed")

    def do_term_twice(self) -> None:
        self.do_term(twice=True)

    def do_term(self, twice: bool = False) -> None:
        when = "at a second SIGTERM" if twice else "at SIGTERM"
        self.do_continue()
        self._begin_end()
        self.server.signal(signal.SIGTERM)
        if twice:
            time.sleep(0.1)
            with contextlib.suppress(UsageError):  # it has ended
                self.server.signal(signal.SIGTERM)
        # What is paused cannot drain, and is given up after the drain.
        limit = 3 * END_S if self._rest.holds else END_S
        wait_for_end(self.server.child, limit)
        if self.server.child.alive:
            self._note(f"the server does not end {when}", f"within {limit:g} s")
            return
        self._streams.expect_drained(when, cut=self._rest.holds or twice)
        self._expect_nothing_left(when)

    def _begin_end(self) -> None:
        self._has_ended = True
        self.server.processes()
        self._segments = process_tree.shared_memory(self.server.child.processes())

    def _expect_nothing_left(self, when: str) -> None:
        others = [one for one in self.server.child.processes() if not process_tree.is_helper(one)]
        running = {process.pid for process in process_tree.wait_until_gone(others, LEAVE_S)}
        left = sorted({info.role for info in self.server.processes() if info.pid in running})
        if left:
            self._note(f"{', '.join(left)} left {when}", f"still running after {LEAVE_S:g} s")
        if listeners.on_port(self._port):
            self._note(f"port left {when}", "something still listens")
        if any(Path(segment).exists() for segment in self._segments):
            self._note(f"shared memory left {when}", ", ".join(sorted(self._segments)))

    def _finish(self) -> None:
        """End a story in which the server still works, and compare its metrics with what was asked."""
        self.do_continue()
        self.do_wake()
        if self._rest.holds:
            self.do_resume()
        self._complete += self._streams.finish()
        self.do_unload()
        if (health := ask(self.server, "/health")) != "200":
            self._note("/health is not 200 though nothing is wrong", health)
            return
        self.do_ask()
        if not self.problems:
            self._compare_metrics()
        if not self.problems:
            self.problems += held_requests(self.server)

    def _compare_metrics(self) -> None:
        end = time.monotonic() + LEAVE_S
        while time.monotonic() < end and (busy := sum(map(self._total, _BUSY))) > 0:
            time.sleep(0.2)
        if busy > 0:
            self._note("metrics count requests that have ended", f"{busy:g} run or wait")
        counted = self._total(_SUCCESS, *_ANSWERED) - self._before
        if counted < self._complete:
            words = f"{counted:g} instead of {self._complete}"
            self._note("metrics count fewer answers than there were", words)

    def _total(self, name: str, *reasons: str) -> float:
        samples = self.server.metrics().of(name)
        return sum(
            value
            for labels, value in samples.items()
            if not reasons or dict(labels).get("finished_reason") in reasons
        )
