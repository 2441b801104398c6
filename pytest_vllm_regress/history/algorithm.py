"""Which release or commit does a bisection try next, and which changes do its results show? Pure:
no runs, no files, no clock.

``next_candidate`` states the order. A candidate that gives no clear verdict is SKIPPED, and its
nearest untried neighbour is tried instead (``CandidateSearch._try`` decides it): one that cannot be
built or whose import fails at once, NOT_APPLICABLE results at once, INCONCLUSIVE results after
``repeat`` runs. A change between two clear candidates with skipped ones between them is reported as
such a range.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass


class CandidateState(enum.Enum):
    """Result of a candidate. ``SKIPPED``: it gave no clear verdict and is not tried again."""

    BAD = "bad"
    GOOD = "good"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Transition:
    """Two candidates, by index, with different states.

    No candidate between them has a clear state.
    """

    low: int
    high: int
    before: CandidateState
    after: CandidateState

    @property
    def is_fix(self) -> bool:
        """True if the failure disappears, False if it appears."""
        return self.after is CandidateState.GOOD

    @property
    def kind(self) -> str:
        return "fix" if self.is_fix else "break"


class Direction(enum.Enum):
    """The changes to look for."""

    ANY = "any"
    FIX = "fix"
    BREAK = "break"

    def includes(self, is_fix: bool) -> bool:
        return self is Direction.ANY or (self is Direction.FIX) == is_fix


def next_candidate(
    count: int, known: Mapping[int, CandidateState], probes: int | None = None
) -> int | None:
    """Return the index of the candidate to try next, of ``count`` in order of age, or None if the
    search is complete.

    Both ends come first, then the middle between two candidates with different states. With a
    single change and no skipped candidate this takes at most ceil(log2(count)) + 2 runs. If both
    ends have the same state, up to ``probes`` candidates between them (default:
    ``most_runs(count)``) are tried, widest gap first, because a failure may come and go. A skipped
    candidate is replaced by its nearest neighbour.
    """
    for order in (range(count), range(count - 1, -1, -1)):
        clear_or_untried = (
            index for index in order if known.get(index) is not CandidateState.SKIPPED
        )
        end = next(clear_or_untried, None)
        if end is not None and end not in known:
            return end
    known_changes = changes(count, known)
    for change in known_changes:
        middle = _nearest_to_middle(change.low, change.high, known)
        if middle is not None:
            return middle
    clear = sorted(index for index, state in known.items() if state is not CandidateState.SKIPPED)
    if known_changes or not clear:
        return None
    budget = most_runs(count) if probes is None else probes
    if sum(1 for index in known if index not in (clear[0], clear[-1])) >= budget:
        return None
    widest_first = sorted(itertools.pairwise(clear), key=lambda gap: gap[0] - gap[1])
    middles = (_nearest_to_middle(low, high, known) for low, high in widest_first)
    return next((index for index in middles if index is not None), None)


def changes(count: int, known: Mapping[int, CandidateState]) -> tuple[Transition, ...]:
    """Return every change between tested candidates, oldest first.

    More than one means that the failure comes and goes.
    """
    clear = [
        (index, known[index])
        for index in range(count)
        if known.get(index, CandidateState.SKIPPED) is not CandidateState.SKIPPED
    ]
    return tuple(
        Transition(low, high, before, after)
        for (low, before), (high, after) in itertools.pairwise(clear)
        if before is not after
    )


def most_runs(count: int) -> int:
    """Return the largest number of candidates that are tried if none is skipped and the failure
    changes once."""
    return math.ceil(math.log2(max(count, 1))) + 2


def runs_left(count: int, known: Mapping[int, CandidateState], probes: int | None = None) -> int:
    """Return how many more candidates are tried at most, if none of them is skipped and no other
    change shows."""
    clear = {index: s for index, s in known.items() if s is not CandidateState.SKIPPED}
    known, runs = dict(known), 0
    while (index := next_candidate(count, known, probes)) is not None:
        low = max((other for other in clear if other < index), default=None)
        high = min((other for other in clear if other > index), default=None)
        if low is not None and high is not None:  # the change is in the larger part
            state = clear[high if index - low > high - index else low]
        else:  # an end differs from the other one
            is_bad = CandidateState.BAD in clear.values()
            state = CandidateState.GOOD if is_bad else CandidateState.BAD
        known[index] = clear[index] = state
        runs += 1
    return runs


def _nearest_to_middle(low: int, high: int, known: Mapping[int, CandidateState]) -> int | None:
    middle = (low + high) / 2
    return min(
        (index for index in range(low + 1, high) if index not in known),
        key=lambda index: abs(index - middle),
        default=None,
    )
