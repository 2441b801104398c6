"""What a pair of sides shows: a difference of one request, in the question that shows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from .oracle import Difference
from .request import Question


@dataclasses.dataclass(frozen=True)
class Observed:
    """A difference. ``number``: which request of the question shows it."""

    question: Question
    difference: Difference
    number: int = 0

    @property
    def traits(self) -> frozenset[str]:
        """What causes are told apart by, besides the kind of difference."""
        return self.question.traits - EVERYWHERE


Ask = Callable[[Question], list[Observed]]
"""Asks both sides of a pair. Returns every difference."""
EVERYWHERE = frozenset({"max_tokens", "temperature"})
"""Options of every request."""
