"""What ends a wait before its deadline beside a hang in a call: a hang over HTTP, and the death of an engine that nobody tells."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from pytest_vllm_regress.engines.http import transport
from pytest_vllm_regress.engines.http.aside import Aside
from pytest_vllm_regress.engines.http.transport import Transport
from pytest_vllm_regress.engines.spec import EngineSpec
from pytest_vllm_regress.errors import ChildDied, DeadlineExceeded, Kind, RemoteError
from pytest_vllm_regress.processes.agent import Agent
from pytest_vllm_regress.processes.child import Child
from pytest_vllm_regress.processes.early import NEVER, Early
from pytest_vllm_regress.processes.stillness import Awaited
from pytest_vllm_regress.util.deadline import Deadline
from tests.integration.processes.test_stillness import FAMILIES, PATIENT_S, SETTLE_S

HANG = Early(Awaited("the documented text", ("request",), SETTLE_S), deaths=False)
SHORT_S = 4.5

Ask = Callable[..., Any]


@pytest.fixture
def child(agent: Agent) -> Iterator[Child]:
    made = agent.fork("probe", Deadline.after("start", 30))
    made.early = Early()
    yield made
    made.kill()


def ask(child: Child, function: str, seconds: float = PATIENT_S, phase: str = "request") -> Any:
    call = {"file": str(FAMILIES), "function": function, "arguments": {}}
    return child.request("call", Deadline.after(phase, seconds), **call)


@pytest.fixture
def get(child: Child) -> Iterator[Ask]:
    """GET a function's name from a server in the child; it answers when the function does."""
    port = ask(child, "listen")
    request = {"op": "call", "file": str(FAMILIES), "function": "serve", "arguments": {}}
    child._channel.send(request, timeout_s=5)
    quiet = SimpleNamespace(admit=lambda body: None, check=lambda: None)

    def deadline_for(phase: str, seconds: float | None) -> Deadline:
        return Deadline.after(phase, PATIENT_S if seconds is None else seconds)

    server = Transport(child, EngineSpec(), SimpleNamespace(number=port), "key", deadline_for, quiet)  # type: ignore[arg-type]

    def over_http(function: str, seconds: float = PATIENT_S) -> str:
        return server.get(f"/{function}", timeout=seconds).text

    yield over_http
    server.client.close()


@pytest.mark.parametrize("family", ["wait_for_ever", "wait_for_a_child_that_waits", "restart_for_ever"])
def test_a_documented_hang_over_http_ends_early(child: Child, get: Ask, family: str) -> None:
    child.early = HANG
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded) as caught:
        get(family)
    assert time.monotonic() - started < PATIENT_S - 10
    assert f"the deadline of {PATIENT_S:g} s was not waited for" in str(caught.value)
    assert caught.value.phase == "request" and caught.value.kind is Kind.HANG


def test_text_that_comes_before_anybody_waits_is_heard_over_http(
    child: Child, get: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it came before the wait was a matter of which thread ran first."""

    class Late(Aside[Any]):
        def __enter__(self) -> Aside[Any]:
            until = time.monotonic() + 20
            while "the documented text" not in child.log.read_text() and time.monotonic() < until:
                time.sleep(0.01)
            return self

    monkeypatch.setattr(transport, "Aside", Late)
    child.early = HANG
    with pytest.raises(DeadlineExceeded, match="the deadline of 30 s was not waited for"):
        get("wait_for_ever", 30.0)


@pytest.mark.parametrize("family", ["spin", "sleep_and_answer", "swap_lines", "slow_download"])
def test_what_works_over_http_is_never_called_still(child: Child, get: Ask, family: str) -> None:
    child.early = HANG
    assert get(family)


@pytest.mark.parametrize(
    ("family", "early"),
    [("say_nothing_and_wait", HANG), ("wait_for_ever", Early()), ("wait_for_ever", NEVER), ("drip", NEVER)],
)
def test_else_the_whole_deadline_is_waited_for_over_http(child: Child, get: Ask, family: str, early: Early) -> None:
    """Not longer either: each part of a slow answer came in time, and the whole of it never."""
    child.early = early
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"missed its deadline: no HTTP answer within 4.5 s"):
        get(family, SHORT_S)
    assert SHORT_S <= time.monotonic() - started < 3 * SHORT_S


def test_a_server_that_dies_and_leaves_its_connection_to_others_is_dead(get: Ask) -> None:
    """Was a hang until the deadline."""
    started = time.monotonic()
    with pytest.raises(ChildDied, match="killed by SIGKILL"):
        get("die_with_an_heir")
    assert time.monotonic() - started < 10


def engine_of(child: Child) -> tuple[psutil.Process, psutil.Process]:
    """A process of the engine that the test has taken, and one that is none of it."""
    first, second = map(psutil.Process, ask(child, "have_an_engine"))
    child.witness.take([first])
    return first, second


@pytest.mark.parametrize("front", ["say_nothing_and_wait", "spin_for_a_peer", "poll_for_ever", "sleep_and_answer"])
def test_the_death_of_an_engine_that_nobody_tells_is_told_at_once(child: Child, front: str) -> None:
    engine_of(child)[0].kill()
    started = time.monotonic()
    with pytest.raises(ChildDied) as caught:
        ask(child, front)
    assert time.monotonic() - started < (12 if front == "spin_for_a_peer" else 7)
    assert caught.value.kind is Kind.ENGINE_DEATH and caught.value.phase == "request"
    words = str(caught.value)
    assert "died: its engine process" in words and "has ended: killed by SIGKILL (" in words
    assert "== dossier:" in words and "killed by SIGKILL" in caught.value.parts["exit"]  # type: ignore[index]


def test_the_death_of_an_engine_behind_a_server_is_told_at_once(child: Child, get: Ask) -> None:
    engine = psutil.Process(int(get("have_an_engine").strip("[]").split(",")[0]))
    child.witness.take([engine])
    engine.kill()
    started = time.monotonic()
    with pytest.raises(ChildDied, match="has ended: killed by SIGKILL"):
        get("say_nothing_and_wait")
    assert time.monotonic() - started < 7


def test_requests_of_several_threads_are_told_each(child: Child, get: Ask) -> None:
    """The one in the queue of the server, too."""
    engine = psutil.Process(int(get("have_an_engine").strip("[]").split(",")[0]))
    child.witness.take([engine])
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(get, "say_nothing_and_wait") for _ in range(4)]
        engine.kill()
        errors = [each.exception(PATIENT_S) for each in asked]
    others = [each for each in errors if getattr(each, "kind", None) is not Kind.ENGINE_DEATH]
    assert others == []


def test_what_the_front_end_says_of_the_death_comes_first(child: Child) -> None:
    engine_of(child)[0].kill()
    with pytest.raises(RemoteError, match="the engine is dead") as caught:
        ask(child, "say_that_it_died")
    assert caught.value.kind is Kind.ENGINE_DEATH


@pytest.mark.parametrize("family", ["answer_although_others_come_and_go", "sleep_and_answer"])
def test_other_processes_may_end(child: Child, family: str) -> None:
    engine_of(child)[1].kill()
    assert ask(child, family)


@pytest.mark.parametrize(("early", "phase"), [(NEVER, "request"), (HANG, "request"), (Early(), "probe")])
def test_where_deaths_are_not_told_the_deadline_is_waited_for(child: Child, early: Early, phase: str) -> None:
    child.early = early
    os.kill(engine_of(child)[0].pid, signal.SIGKILL)
    with pytest.raises(DeadlineExceeded, match=r"no answer within 4.5 s"):
        ask(child, "say_nothing_and_wait", SHORT_S, phase)
