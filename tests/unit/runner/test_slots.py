"""When one more environment is used than there are cores."""

from __future__ import annotations

import pytest

from pytest_vllm_regress.runner.slots import GIB_PER_JOB, IDLE_S, Spare


def ask(idle_cores: float, *, running: int = 2, most: int = 4, free_gib: float = 20.0, seconds: float = 25.0) -> int:
    """How often it says yes when asked five times a second for ``seconds`` on a machine of which so many cores idle."""
    now = [100.0]
    spare = Spare(most, lambda: idle_cores * now[0], lambda: free_gib, lambda: now[0])
    said = 0
    for _ in range(int(seconds * 5)):
        said += spare(running)
        now[0] += 0.2
    return said


def test_what_one_needs_idle_takes_one_more_each_time() -> None:
    assert ask(0.7) == 2 and ask(0.7, seconds=IDLE_S) == 0


@pytest.mark.parametrize(
    "room", [{"idle_cores": 0.5}, {"idle_cores": 2.0, "running": 4}, {"idle_cores": 2.0, "free_gib": GIB_PER_JOB - 1}]
)
def test_else_there_is_no_room(room: dict[str, float]) -> None:
    assert ask(**room) == 0  # type: ignore[arg-type]


def test_what_was_before_a_pause_does_not_count() -> None:
    now, idle = [0.0], [0.0]
    spare = Spare(4, lambda: idle[0], lambda: 20.0, lambda: now[0])
    assert not spare(1)
    now[0], idle[0] = 60.0, 120.0  # idle all the time, and nobody asked
    assert not spare(1)
    now[0] += IDLE_S / 2
    assert not spare(1)
    now[0] += IDLE_S / 2  # busy since
    assert not spare(1)
