"""Draw examples from a Hypothesis strategy by a seed, without running a test."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from .deterministic import backend

T = TypeVar("T")


def draw_distinct(
    strategy: SearchStrategy[T],
    count: int,
    seed_value: int,
    key: Callable[[T], Hashable] = lambda value: value,
) -> list[T]:
    """Return the distinct values among ``count`` draws. Values are equal if their ``key`` is.

    The same seed draws the same values on every machine with the same release of Hypothesis.
    """
    values: dict[Hashable, T] = {}

    @seed(seed_value)
    @settings(
        backend=backend(),
        max_examples=max(1, count),
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def note(value: T) -> None:
        values.setdefault(key(value), value)

    note()
    return list(values.values())
