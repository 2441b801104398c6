"""When more environments may run than there are cores."""

from __future__ import annotations

import pytest

from pytest_vllm_regress.runner.slots import GIB_PER_BATCH, IDLE_S, Spare, present_load, worker_room


def ask(
    idle_cores: float,
    *,
    running: int = 2,
    most: int = 4,
    free_gib: float = 20.0,
    seconds: float = 25.0,
) -> int:
    """Return how often there is room when asked five times a second for ``seconds`` while this many
    cores are idle."""
    now = [100.0]
    spare = Spare(most, lambda: idle_cores * now[0], lambda: free_gib, lambda: now[0])
    count = 0
    for _ in range(int(seconds * 5)):
        count += spare(running)
        now[0] += 0.2
    return count


def test_one_more_environment_runs_each_time_enough_is_idle() -> None:
    assert ask(0.7) == 2 and ask(0.7, seconds=IDLE_S) == 0


@pytest.mark.parametrize(
    "room",
    [
        {"idle_cores": 0.5},
        {"idle_cores": 2.0, "running": 4},
        {"idle_cores": 2.0, "free_gib": GIB_PER_BATCH - 1},
    ],
)
def test_there_is_no_room_otherwise(room: dict[str, float]) -> None:
    assert ask(**room) == 0  # type: ignore[arg-type]


def test_idle_time_before_a_pause_does_not_count() -> None:
    now, idle = [0.0], [0.0]
    spare = Spare(4, lambda: idle[0], lambda: 20.0, lambda: now[0])
    assert not spare(1)
    now[0], idle[0] = 60.0, 120.0  # idle all the time, but not called
    assert not spare(1)
    now[0] += IDLE_S / 2
    assert not spare(1)
    now[0] += IDLE_S / 2  # busy since
    assert not spare(1)


@pytest.mark.parametrize(
    ("memory_gib", "load", "workers"),
    [(24.0, 0.2, 5), (10.0, 0.2, 3), (24.0, 8.0, 1), (2.0, 0.0, 1)],
)
def test_hangs_wait_side_by_side_where_memory_and_load_allow_it(
    memory_gib: float, load: float, workers: int
) -> None:
    assert worker_room(2, memory_gib, load) == workers


@pytest.mark.parametrize(
    ("average", "running", "load"),
    [(4.0, [0] * 8 + [1] * 2, 0.2), (4.0, [6] * 10, 4.0), (0.5, [], 0.5)],
)
def test_what_has_ended_is_no_load(average: float, running: list[int], load: float) -> None:
    assert present_load(iter(running).__next__, average) == pytest.approx(load)
    assert present_load() >= 0
