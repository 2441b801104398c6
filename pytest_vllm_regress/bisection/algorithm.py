"""Which release to try next, and what the tried ones say. Pure: no runs, no files, no clock."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
from collections.abc import Mapping


class State(enum.Enum):
    """What a release showed. ``SKIPPED``: it could not be told, and will not be tried again."""

    BAD = "bad"
    GOOD = "good"
    SKIPPED = "skipped"


@dataclasses.dataclass(frozen=True)
class Change:
    """Two tested releases, by index, that differ; none between them could be told."""

    low: int
    high: int
    before: State
    after: State

    @property
    def is_fix(self) -> bool:
        """From bad to good."""
        return self.after is State.GOOD


def next_release(count: int, known: Mapping[int, State], probes: int | None = None) -> int | None:
    """The index of the release to try, of ``count`` in order of age, or None when nothing more is to be learnt.

    First the ends, then the middle of what lies between two releases that differ: with one change among releases that can all be told,
    at most ceil(log2(count)) + 2 in all. Where the ends agree, up to ``probes`` releases between them (default: as many again) are looked
    at, widest gap first, because a failure may come and go. A skipped release is replaced by its nearest neighbour.
    """
    end = _end(range(count), known)
    if end is None:
        end = _end(range(count - 1, -1, -1), known)
    if end is not None:
        return end
    found = changes(count, known)
    for change in found:
        inside = _nearest_to_middle(change.low, change.high, known)
        if inside is not None:
            return inside
    told = sorted(index for index, state in known.items() if state is not State.SKIPPED)
    if found or not told:
        return None
    budget = most_runs(count) if probes is None else probes
    if sum(1 for index in known if index not in (told[0], told[-1])) >= budget:
        return None
    gaps = sorted(itertools.pairwise(told), key=lambda pair: pair[0] - pair[1])
    return next((index for low, high in gaps if (index := _nearest_to_middle(low, high, known)) is not None), None)


def changes(count: int, known: Mapping[int, State]) -> tuple[Change, ...]:
    """Every change among the tested releases, oldest first. More than one: the failure comes and goes."""
    told = [(index, known[index]) for index in range(count) if known.get(index, State.SKIPPED) is not State.SKIPPED]
    return tuple(
        Change(low, high, before, after)
        for (low, before), (high, after) in itertools.pairwise(told)
        if before is not after
    )


def most_runs(count: int) -> int:
    """How many releases are tried at most when all can be told and the failure changes once."""
    return math.ceil(math.log2(max(count, 1))) + 2


def _end(order: range, known: Mapping[int, State]) -> int | None:
    """The first release in ``order`` that is not skipped, if it has not been tried yet."""
    first = next((index for index in order if known.get(index) is not State.SKIPPED), None)
    return first if first is not None and first not in known else None


def _nearest_to_middle(low: int, high: int, known: Mapping[int, State]) -> int | None:
    middle = (low + high) / 2
    return min(
        (index for index in range(low + 1, high) if index not in known),
        key=lambda index: abs(index - middle),
        default=None,
    )
