"""When a process tree counts as still: each test changes one field of its snapshots."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest

from pytest_vllm_regress.engines.processes.stillness import (
    SETTLE_S,
    SNAPSHOT_INTERVAL_S,
    Member,
    Snapshot,
    Thread,
    detect_stillness,
    is_quiet,
    may_continue_by_itself,
)

LOOKS = int(SETTLE_S / SNAPSHOT_INTERVAL_S) + 2
IDLE = Member("S", 1.0)


def family(
    change: Callable[[int, dict[str, Any]], None] = lambda at, fields: None, looks: int = LOOKS
) -> list[Snapshot]:
    """Snapshots of a process that owes an answer, a worker and a Ray daemon.

    ``change(at, fields)`` modifies the snapshot number ``at``.
    """
    snapshots = []
    for at in range(looks):
        daemon = Member("S", 0.02 * at, bytes=9000 * at, wake_ups=20 * at, alarm=0.5, daemon=True)
        fields: dict[str, Any] = {"members": {1: IDLE, 2: IDLE, 3: daemon}, "matches": 1}
        change(at, fields)
        snapshots.append(Snapshot(at * SNAPSHOT_INTERVAL_S, responder=1, **fields))
    return snapshots


def member(pid: int, **values: Callable[[int], Any]) -> Callable[[int, dict[str, Any]], None]:
    """Return a change that gives one process these values, by the number of the snapshot."""

    def change(at: int, fields: dict[str, Any]) -> None:
        new = dataclasses.replace(
            fields["members"][pid], **{name: value(at) for name, value in values.items()}
        )
        fields["members"] = {**fields["members"], pid: new}

    return change


def whole(**values: Callable[[int], Any]) -> Callable[[int, dict[str, Any]], None]:
    return lambda at, fields: fields.update({name: value(at) for name, value in values.items()})


def test_a_tree_without_progress_stands_still() -> None:
    stillness = detect_stillness(family())
    assert (
        stillness is not None
        and stillness.seconds >= SETTLE_S
        and str(stillness) == "still for 10 s"
    )
    assert detect_stillness(family()[:-2]) is None  # not for long enough


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(whole(matches=lambda at: 0), id="its text was not seen"),
        pytest.param(whole(logged=lambda at: 40 * (at // 5)), id="it logs"),
        pytest.param(
            whole(reaped=lambda at: 0.1 * at), id="processes that were never seen use time"
        ),
        pytest.param(member(2, cpu=lambda at: 0.1 * at), id="a worker works"),
        pytest.param(member(3, cpu=lambda at: 0.1 * at), id="a daemon works"),
        pytest.param(member(2, bytes=lambda at: 700 * at), id="a worker reads or writes"),
        pytest.param(member(2, faults=lambda at: 2 * at), id="it swaps"),
        pytest.param(
            member(2, state=lambda at: "D" if at % 4 == 0 else "S"), id="it waits for a disk"
        ),
        pytest.param(member(2, state=lambda at: "R" if at % 3 else "S"), id="it wants a processor"),
        pytest.param(member(1, state=lambda at: "T" if at == 9 else "S"), id="it was stopped"),
        pytest.param(member(1, wake_ups=lambda at: at), id="something wakes it up"),
        pytest.param(
            member(1, wake_ups=lambda at: 3 * at, alarm=lambda at: 5.0),
            id="sooner than its alarm would",
        ),
        pytest.param(
            member(1, wake_ups=lambda at: 9 * at, alarm=lambda at: 0.0),
            id="more often than one polls",
        ),
        pytest.param(member(1, alarm=lambda at: 0.0), id="it sleeps until an alarm"),
        pytest.param(member(2, alarm=lambda at: 30.0), id="a worker waits for a time"),
        pytest.param(
            member(2, alarm=lambda at: 4.0, wake_ups=lambda at: at // 8),
            id="a time-out that it sets again",
        ),
        pytest.param(
            member(1, connections=lambda at: frozenset({str(at // 4)})), id="it connects anew"
        ),
        pytest.param(
            lambda at, f: f["members"].update({9: IDLE} if at > 15 else {}), id="a process has come"
        ),
        pytest.param(
            lambda at, f: f["members"].pop(2) if at > 15 else None, id="a process has gone"
        ),
        pytest.param(lambda at, f: f["members"].pop(1), id="who owes the answer has ended"),
    ],
)
def test_progress_or_a_process_that_may_continue_is_not_still(
    change: Callable[[int, dict[str, Any]], None],
) -> None:
    assert detect_stillness(family(change)) is None


@pytest.mark.parametrize(
    "change",
    [
        member(
            1, wake_ups=lambda at: at // 2, alarm=lambda at: 0.0
        ),  # Ray's get looks once a second
        member(1, wake_ups=lambda at: 5 * at, alarm=lambda at: 0.1),  # an idle server
        member(2, wake_ups=lambda at: 45 * at),  # a worker of Ray's
        member(
            2,
            state=lambda at: "R" if at == 7 else "S",
            cpu=lambda at: 0.005 * at,
            bytes=lambda at: 50 * at,
        ),
    ],
)
def test_polling_counts_as_still(change: Callable[[int, dict[str, Any]], None]) -> None:
    assert detect_stillness(family(change))


def test_idle_daemons_of_two_rays_count_as_still() -> None:
    def change(at: int, fields: dict[str, Any]) -> None:
        idle = {
            pid: Member("S", 0.005 * at, wake_ups=20 * at, alarm=0.5, daemon=True)
            for pid in range(10, 24)
        }
        fields["members"] = {**fields["members"], **idle}

    assert detect_stillness(family(change))


def test_a_timer_that_fired_often_enough_counts_as_polling() -> None:
    change = member(1, wake_ups=lambda at: at // 8, alarm=lambda at: 4.0)
    assert detect_stillness(family(change, looks=24)) is None
    assert detect_stillness(family(change, looks=40))


def restarting(at: int, fields: dict[str, Any]) -> None:
    """A worker that dies and is restarted every two seconds, with the same log lines."""
    fields["members"] = {**fields["members"], 100 + at // 4: Member("R", 0.1 * (at % 4))}
    fields.update(matches=1 + at // 4, logged=200 * (at // 4), reaped=0.4 * (at // 4), novel=5)


def test_a_repeated_step_is_detected_after_a_longer_time() -> None:
    assert detect_stillness(family(restarting, looks=LOOKS)) is None
    stillness = detect_stillness(family(restarting, looks=3 * LOOKS))
    assert (
        stillness is not None
        and stillness.repeats >= 5
        and str(stillness).startswith("the same step again for 30")
    )


def test_workers_that_live_between_two_snapshots_show_by_their_cpu_time() -> None:
    def change(at: int, fields: dict[str, Any]) -> None:
        together = fields["members"]
        restarting(at, fields)
        fields["members"] = together

    assert detect_stillness(family(change, looks=3 * LOOKS))


@pytest.mark.parametrize(
    "more",
    [
        whole(novel=lambda at: at // 20),
        whole(matches=lambda at: 1),
        member(2, cpu=lambda at: 0.1 * at),
        member(1, state=lambda at: "D" if at % 8 < 2 else "S"),
    ],
)
def test_a_step_with_new_log_lines_is_not_a_repetition(
    more: Callable[[int, dict[str, Any]], None],
) -> None:
    def change(at: int, fields: dict[str, Any]) -> None:
        restarting(at, fields)
        more(at, fields)

    assert detect_stillness(family(change, looks=3 * LOOKS)) is None


def test_a_parent_that_restarts_workers_may_wait_for_their_exec() -> None:
    def change(at: int, fields: dict[str, Any]) -> None:
        restarting(at, fields)
        member(1, state=lambda at: "D" if at % 8 in (0, 1, 4) else "S", wake_ups=lambda at: at)(
            at, fields
        )

    assert detect_stillness(family(change, looks=3 * LOOKS))


def test_snapshots_with_gaps_prove_nothing() -> None:
    assert detect_stillness([family()[0], family()[-1]]) is None
    assert detect_stillness([]) is None


def test_runnable_or_sleeping_threads_may_continue() -> None:
    for state, sleeps, count, expected in (
        *(("S", False, 0, False), ("S", True, 0, True), ("S", True, 1, False)),
        *(("D", False, 0, True), ("D", False, 1, False), ("R", False, 1, True)),
    ):
        assert (
            may_continue_by_itself(
                {7: Thread(state, 3, sleeps)}, {7: Thread(state, 3 + count, sleeps)}
            )
            is expected
        )
    assert not may_continue_by_itself({7: Thread("R", 3, False)}, {8: Thread("R", 3, False)})
    assert math.inf == IDLE.alarm


def test_quiet_needs_no_text_and_ignores_timers() -> None:
    def alone(at: int, fields: dict[str, Any]) -> None:
        member(1, alarm=lambda at: 30.0)(at, fields)
        fields["matches"] = 0

    assert is_quiet(family(alone, looks=4), 1.5) and not is_quiet(family(alone, looks=3), 1.5)
    assert not is_quiet(family(member(2, cpu=lambda at: 0.1 * at), looks=4), 1.5)
    assert not is_quiet(family(lambda at, f: f["members"].pop(2) if at > 2 else None, looks=4), 1.5)
