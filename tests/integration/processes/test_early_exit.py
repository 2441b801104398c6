"""Conditions that end a wait before its deadline, other than a hang in a call: a hang over HTTP,
and an engine that dies without a report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from pytest_vllm_regress.engines.http import transport
from pytest_vllm_regress.engines.http.transport import BackgroundCall, Transport
from pytest_vllm_regress.engines.processes import early_exit
from pytest_vllm_regress.engines.processes.agent import Agent
from pytest_vllm_regress.engines.processes.child import Child, Loan
from pytest_vllm_regress.engines.processes.early_exit import (
    NO_EARLY_EXIT,
    DocumentedHang,
    EarlyExitPolicy,
)
from pytest_vllm_regress.engines.running import Launch
from pytest_vllm_regress.engines.spec import EngineSpec
from pytest_vllm_regress.errors import ChildDied, DeadlineExceeded, Kind, RemoteError
from pytest_vllm_regress.util.deadline import Deadline
from tests.integration.processes.test_stillness import PATIENT_S, PROCESS_TREES, SETTLE_S

pytestmark = pytest.mark.slow

HANG = EarlyExitPolicy(DocumentedHang("the documented text", ("request",), SETTLE_S), deaths=False)
SHORT_S = 4.5

Ask = Callable[..., Any]


@pytest.fixture
def child(agent: Agent) -> Iterator[Child]:
    started = agent.start_child("probe", Deadline.after("start", 60), loan=Loan(EarlyExitPolicy()))
    yield started
    started.kill()


def ask(child: Child, function: str, seconds: float = PATIENT_S, phase: str = "request") -> Any:
    call = {"file": str(PROCESS_TREES), "function": function, "arguments": {}}
    return child.request("call", Deadline.after(phase, seconds), **call)


@pytest.fixture
def get(child: Child) -> Iterator[Ask]:
    """GET a function's name from a server in the child; it answers when the function does."""
    port = ask(child, "listen")
    request = {"op": "call", "file": str(PROCESS_TREES), "function": "serve", "arguments": {}}
    child._channel.post(request, Deadline.after("probe", 60))
    quiet = SimpleNamespace(admit=lambda body: None, check=lambda: None)

    def deadline_for(phase: str, seconds: float | None) -> Deadline:
        return Deadline.after(phase, PATIENT_S if seconds is None else seconds)

    launch = Launch(child, EngineSpec(), deadline_for, quiet)  # type: ignore[arg-type]
    server = Transport(launch, SimpleNamespace(number=port), "key")  # type: ignore[arg-type]

    def over_http(function: str, seconds: float = PATIENT_S) -> str:
        return server.get(f"/{function}", timeout=seconds).text

    yield over_http
    server.client.close()


@pytest.mark.parametrize(
    "family", ["wait_for_ever", "wait_for_a_child_that_waits", "restart_for_ever"]
)
def test_a_documented_hang_over_http_ends_early(child: Child, get: Ask, family: str) -> None:
    with child.lend(Loan(HANG)), pytest.raises(DeadlineExceeded) as caught:
        get(family)
    assert f"the wait ended before its deadline of {PATIENT_S:g} s" in str(caught.value)
    assert caught.value.phase == "request" and caught.value.kind is Kind.HANG


def test_text_logged_before_the_wait_counts_over_http(
    child: Child, get: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the outcome depended on which thread ran first."""

    class Late(BackgroundCall[Any]):
        def __enter__(self) -> BackgroundCall[Any]:
            until = time.monotonic() + 60
            while "the documented text" not in child.log.read_text() and time.monotonic() < until:
                time.sleep(0.01)
            return self

    monkeypatch.setattr(transport, "BackgroundCall", Late)
    with (
        child.lend(Loan(HANG)),
        pytest.raises(DeadlineExceeded, match="the wait ended before its deadline of 120 s"),
    ):
        get("wait_for_ever")


@pytest.mark.parametrize("family", ["spin", "sleep_and_answer", "swap_lines", "slow_download"])
def test_work_over_http_never_counts_as_a_hang(child: Child, get: Ask, family: str) -> None:
    with child.lend(Loan(HANG)):
        assert get(family)


@pytest.mark.parametrize(
    ("family", "early"),
    [
        ("say_nothing_and_wait", HANG),
        ("wait_for_ever", EarlyExitPolicy()),
        ("wait_for_ever", NO_EARLY_EXIT),
        ("drip", NO_EARLY_EXIT),
    ],
)
def test_otherwise_the_whole_deadline_passes_over_http(
    child: Child, get: Ask, family: str, early: EarlyExitPolicy
) -> None:
    """It does not wait longer, either: each part of a slow answer arrived in time, but the answer
    never ended."""
    started = time.monotonic()
    with (
        child.lend(Loan(early)),
        pytest.raises(DeadlineExceeded, match=r"missed its deadline: no HTTP answer within 4.5 s"),
    ):
        get(family, SHORT_S)
    assert SHORT_S <= time.monotonic() - started < PATIENT_S / 2


def test_a_server_that_dies_and_leaves_its_connection_to_others_is_dead(get: Ask) -> None:
    """Regression: this was a hang until the deadline."""
    started = time.monotonic()
    with pytest.raises(ChildDied, match="killed by SIGKILL"):
        get("die_with_an_heir")
    assert time.monotonic() - started < PATIENT_S / 2


def engine_of(child: Child) -> tuple[psutil.Process, psutil.Process]:
    """A process of the engine that the test uses, and one that does not belong to it."""
    first, second = map(psutil.Process, ask(child, "have_an_engine"))
    child.engine_processes.adopt([first])
    return first, second


@pytest.mark.parametrize(
    "front", ["say_nothing_and_wait", "spin_for_a_peer", "poll_for_ever", "sleep_for_ever"]
)
def test_an_unreported_engine_death_ends_the_wait(child: Child, front: str) -> None:
    engine_of(child)[0].kill()
    started = time.monotonic()
    with pytest.raises(ChildDied) as caught:
        ask(child, front)
    assert time.monotonic() - started < PATIENT_S / 2
    assert caught.value.kind is Kind.ENGINE_DEATH and caught.value.phase == "request"
    words = str(caught.value)
    assert "died: its engine process" in words and "has ended: killed by SIGKILL (" in words
    assert "== dossier:" in words and "killed by SIGKILL" in caught.value.parts["exit"]  # type: ignore[index]


def test_an_unreported_engine_death_behind_a_server_ends_the_wait(child: Child, get: Ask) -> None:
    engine = psutil.Process(int(get("have_an_engine").strip("[]").split(",")[0]))
    child.engine_processes.adopt([engine])
    engine.kill()
    started = time.monotonic()
    with pytest.raises(ChildDied, match="has ended: killed by SIGKILL"):
        get("say_nothing_and_wait")
    assert time.monotonic() - started < PATIENT_S / 2


def test_an_engine_death_ends_the_requests_of_all_threads(child: Child, get: Ask) -> None:
    """Including the request in the server's queue."""
    engine = psutil.Process(int(get("have_an_engine").strip("[]").split(",")[0]))
    child.engine_processes.adopt([engine])
    with ThreadPoolExecutor(4) as pool:
        requests = [pool.submit(get, "say_nothing_and_wait") for _ in range(4)]
        engine.kill()
        errors = [request.exception(PATIENT_S) for request in requests]
    others = [error for error in errors if getattr(error, "kind", None) is not Kind.ENGINE_DEATH]
    assert others == []


def test_the_front_ends_own_report_of_the_death_comes_first(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        early_exit, "_QUIET_S", 60.0
    )  # its report takes a second, and longer on a busy machine
    monkeypatch.setattr(early_exit, "_REPORT_S", 60.0)
    engine_of(child)[0].kill()
    with pytest.raises(RemoteError, match="the engine is dead") as caught:
        ask(child, "say_that_it_died")
    assert caught.value.kind is Kind.ENGINE_DEATH


@pytest.mark.parametrize("family", ["answer_although_others_come_and_go", "sleep_and_answer"])
def test_other_processes_may_end(child: Child, family: str) -> None:
    engine_of(child)[1].kill()
    assert ask(child, family)


@pytest.mark.parametrize(
    ("early", "phase"),
    [(NO_EARLY_EXIT, "request"), (HANG, "request"), (EarlyExitPolicy(), "probe")],
)
def test_a_policy_without_deaths_waits_for_the_deadline(
    child: Child, early: EarlyExitPolicy, phase: str
) -> None:
    engine, _ = engine_of(child)
    engine.kill()
    with child.lend(Loan(early)), pytest.raises(DeadlineExceeded, match=r"no answer within 4.5 s"):
        ask(child, "say_nothing_and_wait", SHORT_S, phase)
