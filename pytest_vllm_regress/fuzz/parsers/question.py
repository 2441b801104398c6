"""A question to a parser: a meaning in one format, cut in every way; and what the answers show."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .cuts import Cut, CutKind, cut
from .formats import Format
from .meaning import Meaning, features
from .oracle import STREAM, WHOLE, Answer, Problem, problem

Reply = Mapping[str, Any]
"""Reply of the host to one question: the answers for the whole text (``whole``) and for each cut
(``streams``)."""
Ask = Callable[[Sequence["Question"]], list[Reply]]
"""Asks a parser several questions."""


@dataclasses.dataclass(frozen=True)
class Question:
    """An answer in a parser's format, and its cuts, each with its kind."""

    meaning: Meaning
    text: str
    cuts: tuple[tuple[CutKind, Cut], ...]
    markers: tuple[str, ...]
    options: Mapping[str, object]
    prompt: str = ""

    @classmethod
    def of(
        cls, meaning: Meaning, form: Format, kinds: Sequence[CutKind] = tuple(CutKind)
    ) -> Question:
        """Return the question of a meaning that the format can write (``Format.fitted``), cut in
        these ways. Equal meanings are cut equally."""
        text = form.text(meaning)
        seed = zlib.crc32(text.encode("utf-8", "surrogatepass"))
        cuts = tuple((kind, cut(text, form.tokens, kind, seed)) for kind in kinds)
        return cls(meaning, text, cuts, form.tokens, form.options, form.prompt)

    def with_cut(self, kind: CutKind, pieces: Cut) -> Question:
        """Return the question with this cut alone."""
        return dataclasses.replace(self, cuts=((kind, pieces),))

    def to_request(self) -> dict[str, Any]:
        """Return what the host takes."""
        return {
            "text": self.text,
            "cuts": [list(pieces.pieces) for _, pieces in self.cuts],
            "ends": [pieces.end_alone for _, pieces in self.cuts],
            "options": dict(self.options),
            "prompt": self.prompt,
        }


@dataclasses.dataclass(frozen=True)
class Observed:
    """A problem of one question.

    ``cut``: the kind of cut and the pieces that show it; None if the whole text does.
    """

    question: Question
    problem: Problem
    cut: tuple[CutKind, Cut] | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What findings are compared by, together with the features of the meaning."""
        return self.problem.side, self.problem.kind

    @property
    def features(self) -> frozenset[str]:
        return features(self.question.meaning)


def observations(question: Question, reply: Reply) -> list[Observed]:
    """Return all problems that a reply shows.

    A stream that is wrong as the whole text is wrong is not a second problem.
    """
    whole = problem(question.meaning, Answer.of_json(reply["whole"]), WHOLE, question.markers)
    seen = [Observed(question, whole)] if whole else []
    for one, streamed in zip(question.cuts, reply["streams"], strict=True):
        found = problem(question.meaning, Answer.of_json(streamed), STREAM, question.markers)
        if found and not (whole and whole.kind == found.kind):
            seen.append(Observed(question, found, one))
    return seen
