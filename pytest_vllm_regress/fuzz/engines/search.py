"""Search one pair: shrink the drawn questions with differences, and group them by cause."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence

from .answer import DEATH, NO_ANSWER
from .observed import Ask, Observed
from .reduce import reduce

MAX_OF_KIND = 3
"""Maximum number of findings of one kind, which hardly have more causes."""


@dataclasses.dataclass
class Round:
    """What one round came to.

    Attributes:
        asked: number of questions.
        differing: number of requests by kind of difference.
        findings: differences that no earlier finding explains.
        inconstant: differences that did not show again.
    """

    asked: int = 0
    differing: Counter[str] = dataclasses.field(default_factory=Counter)
    findings: list[Observed] = dataclasses.field(default_factory=list)
    inconstant: list[Observed] = dataclasses.field(default_factory=list)


def search(
    replies: Iterable[Sequence[Observed]], ask: Ask, known: Sequence[Observed] = ()
) -> Round:
    """Shrink the differences that drawn questions have.

    ``known``: findings that are not to be reported again.
    """
    result, explained = Round(), _Explained(known)
    for seen in replies:
        result.asked += 1
        result.differing.update(observed.difference.kind for observed in seen)
        for observed in {one.difference.kind: one for one in reversed(seen)}.values():
            if not explained.explains(observed):
                _note(observed, ask, result, explained)
    return result


def _note(observed: Observed, ask: Ask, result: Round, explained: _Explained) -> None:
    explained.note(observed)
    if not _shows_again(observed, ask):
        result.inconstant.append(observed)
        return
    deadly = DEATH in observed.difference.kind or NO_ANSWER in observed.difference.kind
    smallest = reduce(observed, ask, deadly)
    if not deadly and not _shows_again(smallest, ask):
        result.inconstant.append(smallest)
    elif not explained.explains_smallest(smallest):
        explained.add(smallest)
        result.findings.append(smallest)


def _shows_again(observed: Observed, ask: Ask) -> bool:
    return any(
        again.difference.kind == observed.difference.kind for again in ask(observed.question)
    )


class _Explained:
    """Known findings, and observations that were reduced to one of them."""

    def __init__(self, known: Sequence[Observed]) -> None:
        self._known = list(known)
        self._seen: set[tuple[object, ...]] = set()

    def add(self, observed: Observed) -> None:
        self._known.append(observed)

    def note(self, observed: Observed) -> None:
        self._seen.add((observed.difference.kind, observed.traits))

    def explains(self, observed: Observed) -> bool:
        """Whether a difference is probably a known one: of the same kind, in a question with at
        least the same traits."""
        return (observed.difference.kind, observed.traits) in self._seen or self.explains_smallest(
            observed
        )

    def explains_smallest(self, observed: Observed) -> bool:
        same = [known for known in self._known if known.difference.kind == observed.difference.kind]
        return len(same) >= MAX_OF_KIND or any(known.traits <= observed.traits for known in same)
