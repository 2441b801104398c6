"""Search one parser in one format: ask drawn answers in every cut, shrink what is wrong, and tell
causes apart."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence

from .cuts import CutKind
from .formats import Format
from .meaning import Meaning
from .oracle import NO_ANSWER, WHOLE
from .question import Ask, Observed, Question, observations
from .reduce import reduce

BATCH = 20
COARSE = frozenset({CutKind.SEVERAL, CutKind.RUNS, CutKind.ONCE})
"""Cuts in which a delta holds more than one token."""
MAX_FINDINGS = 30
"""Maximum number of findings of one round."""
MAX_OF_KIND = 4
"""Maximum number of findings of one kind, which hardly have more causes."""
_ONE_CAUSE = ("no end", "raises", "no answer", "death")
"""Kinds of problems that have one cause, whatever the answer contains: the place of an exception
belongs to the kind."""
_BASIC = frozenset(
    {
        "a call",
        "string",
        "integer",
        "number",
        "boolean",
        "list",
        "object",
        "several arguments",
        "content",
        "reasoning",
    }
)


@dataclasses.dataclass(frozen=True)
class Reduced:
    """A problem in its smallest form.

    ``kinds``: kinds of cuts that show it; empty if the whole text does.
    """

    observed: Observed
    kinds: tuple[CutKind, ...] = ()


@dataclasses.dataclass
class Round:
    """What one round came to.

    Attributes:
        asked: number of questions.
        wrong: number of questions with a wrong answer, by how the text arrived (``whole``, or a
            kind of cut) and kind of problem.
        findings: problems that no earlier finding explains.
        inconstant: problems that did not show again.
    """

    asked: int = 0
    wrong: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    findings: list[Reduced] = dataclasses.field(default_factory=list)
    inconstant: list[str] = dataclasses.field(default_factory=list)


def search(
    meanings: Sequence[Meaning], form: Format, ask: Ask, known: Sequence[Reduced] = ()
) -> Round:
    """Ask a parser about these answers. ``known``: findings that are not to be reported again."""
    result = Round()
    explained = _Explained(known)
    for batch in _batches(meanings, form):
        for question, reply in zip(batch, ask(batch), strict=True):
            result.asked += 1
            for seen in observations(question, reply):
                result.wrong[seen.cut[0] if seen.cut else WHOLE, seen.problem.kind] += 1
                if len(result.findings) < MAX_FINDINGS and not explained.explains(seen):
                    _note(seen, form, ask, result, explained)
    return result


def _note(seen: Observed, form: Format, ask: Ask, result: Round, explained: _Explained) -> None:
    narrowed = dataclasses.replace(
        seen, question=dataclasses.replace(seen.question, cuts=(seen.cut,) if seen.cut else ())
    )
    smallest = narrowed if seen.problem.kind == NO_ANSWER else reduce(narrowed, form, ask)
    kinds: tuple[CutKind, ...] = ()
    if smallest.cut and seen.problem.kind != NO_ANSWER:
        question = Question.of(smallest.question.meaning, form)
        (reply,) = ask([question])
        kinds = tuple(
            other.cut[0]
            for other in observations(question, reply)
            if other.cut and other.key == smallest.key
        )
        kinds = tuple(dict.fromkeys((*kinds, smallest.cut[0])))
    reduced = Reduced(smallest, kinds)
    explained.note(seen)
    if not explained.explains(smallest):
        explained.add(reduced)
        result.findings.append(reduced)


class _Explained:
    """Known findings, and observations that were reduced to one of them."""

    def __init__(self, known: Sequence[Reduced]) -> None:
        self._known = list(known)
        self._seen: set[tuple[object, ...]] = set()

    def add(self, reduced: Reduced) -> None:
        self._known.append(reduced)

    def note(self, seen: Observed) -> None:
        self._seen.add(_signature(seen))

    def explains(self, seen: Observed) -> bool:
        if _signature(seen) in self._seen or any(_explains(known, seen) for known in self._known):
            return True
        return sum(known.observed.key == seen.key for known in self._known) >= MAX_OF_KIND


def _signature(seen: Observed) -> tuple[object, ...]:
    return (*seen.key, seen.cut and seen.cut[0], seen.features)


def _explains(known: Reduced, seen: Observed) -> bool:
    """Whether a problem is probably a known one: of the same kind, with at least the same features,
    in a cut that shows the known one, too.

    What only coarse cuts show comes from the cut and hardly from the features: such problems of one
    kind count as one.
    """
    if known.observed.key != seen.key:
        return False
    if seen.problem.kind.startswith(_ONE_CAUSE):
        return True
    if seen.cut and known.kinds:
        kind = seen.cut[0]
        if kind in COARSE and COARSE.issuperset(known.kinds):
            return True
        if kind not in COARSE and kind not in known.kinds:
            return False
    used = known.observed.features
    return (used - _BASIC or used) <= seen.features


def _batches(meanings: Sequence[Meaning], form: Format) -> Iterator[list[Question]]:
    """Yield the questions of the answers as far as the format can write them, each text once."""
    texts: set[str] = set()
    batch = []
    for meaning in meanings:
        question = Question.of(form.fitted(meaning), form)
        if question.text and question.text not in texts:
            texts.add(question.text)
            batch.append(question)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
