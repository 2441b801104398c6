"""What the processes of an engine hold becomes an error only if it lasts and nobody works on it."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.engines.held import NOT_TOLD, Held, HeldReader, settled
from pytest_vllm_regress.errors import HeldRequests, Violation


def _front(*live: str, **held: list[str]) -> dict[str, Any]:
    return {"live": [*live], "held": held, "given_up": [], "numbers": {}, "missing": []}


def _core(numbers: dict[str, list[float]] | None = None, **held: list[str]) -> dict[str, Any]:
    numbers = numbers or {}
    return {"held": held, "aborted": [], "numbers": numbers, "missing": ["free encoder cache"]}


def test_a_request_that_the_front_does_not_know_has_ended() -> None:
    held = Held.of([_front("b"), _core(requests=["a", "b"])])
    assert held.violations == {Violation("requests", "a")}
    assert held.missing == {"free encoder cache"}


def test_numbers_count_only_when_no_request_runs() -> None:
    core = _core({"free blocks": [7, 10]})
    assert Held.of([_front(), core]).violations == {Violation("free blocks", lacking=3)}
    assert not Held.of([_front("a"), core]).violations


def test_a_request_that_only_the_front_knows_has_ended() -> None:
    front = _front("a", request_states=["a"])
    assert Held.of([front, _core()]).violations == {Violation("request_states", "a")}
    assert not Held.of([front, _core(requests=["a"])]).violations


def test_numbers_of_the_front_count_too() -> None:
    front = _front() | {"numbers": {"answers": [2, 0]}}
    violation = Violation("answers", lacking=-2)
    assert Held.of([front, _core()]).violations == {violation}
    assert str(HeldRequests([violation])).endswith("answers: 2 more than at the start")


def test_the_core_must_be_told_of_a_request_that_is_given_up() -> None:
    front = _front() | {"given_up": ["a", "b"]}
    core = _core() | {"aborted": ["a"]}
    assert Held.of([front, core]).violations == {Violation(NOT_TOLD, "b")}


def test_nothing_is_known_of_an_engine_with_one_readable_process() -> None:
    assert not Held.of([_core(requests=["a"])]).violations
    assert not Held.of([_front("a", request_states=["a"])]).violations


LEFT = Held.of([_front(), _core(requests=["a"])])
CLEAN = Held.of([_front(), _core()])


def test_what_ends_within_the_grace_is_no_violation() -> None:
    readings = iter([LEFT, LEFT, CLEAN])
    clock = itertools.count().__next__
    assert not settled(lambda: next(readings), clock=clock, sleep=lambda seconds: None)


def test_what_lasts_is_a_violation_unless_it_was_reported() -> None:
    clock = itertools.count().__next__
    lasting = settled(lambda: LEFT, clock=clock, sleep=lambda seconds: None)
    assert lasting == LEFT.violations
    assert not settled(lambda: LEFT, lasting)


def test_there_is_no_grace_for_a_container_that_is_known_to_leak() -> None:
    def sleep(seconds: float) -> None:
        raise AssertionError("there is nothing to wait for")

    assert settled(lambda: LEFT, leaky={"requests"}, sleep=sleep) == LEFT.violations


def test_the_error_names_container_count_and_requests() -> None:
    violations = [Violation("free blocks", lacking=2), *(Violation("r", str(i)) for i in range(7))]
    error = HeldRequests(violations)
    assert error.containers == ("free blocks", "r")
    words = "free blocks: 2 fewer than at the start; r: 7 (0, 1, 2, 3, 4, ...)"
    assert str(error) == f"the engine still holds requests that have ended: {words}"


def test_processes_are_asked_by_sockets_and_dead_ones_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 40)  # longer than a socket's path may be
    folder.mkdir()
    monkeypatch.chdir(folder)
    with contextlib.ExitStack() as stack:
        for name, answer in (("1-front", _front()), ("2-core", _core())):
            stack.enter_context(_answering(name, answer))
        socket.socket(socket.AF_UNIX).bind("3-core")
        assert HeldReader(folder).read() == CLEAN


def _answering(name: str, answer: dict[str, Any]) -> socket.socket:
    """Answer one connection to the socket ``name`` in the working directory."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(name)
    listener.listen()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(json.dumps(answer).encode())

    threading.Thread(target=serve, daemon=True).start()
    return listener
