"""Make a question smaller as long as it shows the same problem: one reducer for all hunters.

A hunter supplies the candidates, the largest cuts first. The search is greedy: the first candidate
that shows the problem is taken, and the search goes on from there. Like ClusterFuzz's minimizer it
asks several candidates at once where asking has a price of its own; like Hypothesis's shrinker it
never asks the same question twice, and goes on behind the cut that succeeded instead of beginning
again, so that a question of many parts takes one pass, and another one as a proof.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..util.codec import Document, encode, variant
from .drawing import identity
from .finding import Problem

Q = TypeVar("Q")
D = TypeVar("D", bound=Document)


@dataclass(frozen=True)
class Effort:
    """What a reduction may cost.

    Attributes:
        questions: maximum number of questions. 0: the problem is reported as it was seen.
        batch: number of candidates that are asked at once.
        confirmed: the problem must show again before it is reduced.
        constant: and once more in its smallest form.
    """

    questions: int = 120
    batch: int = 1
    confirmed: bool = False
    constant: bool = False


def reduce(
    question: Q,
    problem: Problem,
    simplify: Callable[[Q, Problem], Iterator[Q]],
    look: Callable[[Sequence[Q]], Sequence[Sequence[tuple[Q, Problem]]]],
    effort: Effort,
) -> tuple[Q, Problem]:
    """Return the smallest question that can be reached, with its problem of the same group.

    ``look`` asks questions, and returns for each what it shows.
    """
    left, begin = effort.questions, 0
    tried = {identity(question)}

    def fresh(candidates: Iterator[tuple[int, Q]]) -> Iterator[tuple[int, Q]]:
        for number, candidate in candidates:
            if (text := identity(candidate)) not in tried:
                tried.add(text)
                yield number, candidate

    while True:
        candidates = enumerate(simplify(question, problem))
        skipped = list(itertools.islice(candidates, begin))
        untried = fresh(itertools.chain(candidates, skipped))
        while batch := list(itertools.islice(untried, max(0, min(effort.batch, left)))):
            left -= len(batch)
            seen = look([candidate for _, candidate in batch])
            same = [
                (number, shown)
                for (number, _), problems in zip(batch, seen, strict=True)
                for shown in problems
                if shown[1].group == problem.group
            ]
            if same:
                begin, (question, problem) = same[0]
                break
        else:
            return question, problem


Edit = Callable[[Any], Iterator[Any]]
_NUMBERS = (0, 1, -1, 2, 1000, 2**31, 2**63, 2**64, 2**70)
_FRACTIONS = (0.0, 0.5, 1.5, -0.5)
_LETTERS = 40
"""Of longer texts no single letters are left out."""


def edits(value: Any, edit: Edit) -> Iterator[Any]:
    """Yield a JSON value with one edit in one place, the outer places first."""
    yield from edit(value)
    if isinstance(value, Mapping):
        for key, member in value.items():
            for smaller in edits(member, edit):
                yield {**value, key: smaller}
    elif isinstance(value, list | tuple):
        for at, member in enumerate(value):
            for smaller in edits(member, edit):
                yield [*value[:at], smaller, *value[at + 1 :]]


def smaller_documents(question: D) -> Iterator[D]:
    """Yield simpler questions of the same type: first without a part that may be missing, then with
    simpler values."""
    for value in smaller_values(encode(question)):
        if (smaller := variant(question, value)) is not None:
            yield smaller


def smaller_values(value: Any) -> Iterator[Any]:
    """Yield simpler JSON values of the same type: first without a member, then with simpler ones."""
    yield from edits(value, without_member)
    yield from edits(value, _simpler)


def without_member(value: Any) -> Iterator[Any]:
    """Yield an object or a list without one of its members; of larger ones first a member alone."""
    if isinstance(value, Mapping):
        if len(value) > 2:
            yield from ({key: member} for key, member in value.items())
        for key in value:
            yield {other: member for other, member in value.items() if other != key}
    elif isinstance(value, list | tuple):
        if len(value) > 2:
            yield value[:1]
        for at in range(len(value)):
            yield type(value)([*value[:at], *value[at + 1 :]])


def shorter(text: str) -> Iterator[str]:
    """Yield simpler texts, the simplest first."""
    half = len(text) // 2
    if text:
        yield ""
    if text not in ("", "a"):
        yield "a"
    yield from (text[half:], text[:half]) if half else ()
    for at in range(len(text) if 1 < len(text) <= _LETTERS else 0):
        yield text[:at] + text[at + 1 :]


def smaller_numbers(value: Any) -> Iterator[Any]:
    """Yield simpler numbers of the same type; nothing for other values."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        numbers = _NUMBERS if isinstance(value, int) else _FRACTIONS
        yield from (
            number for number in numbers if abs(number) < abs(value) or number == -value > 0
        )


def _simpler(value: Any) -> Iterator[Any]:
    yield from shorter(value) if isinstance(value, str) else smaller_numbers(value)
