"""A question to a parser: a meaning in one format, cut in every way; and what the answers show."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from ...util import codec
from ...util.codec import Document, Meta
from ..finding import Problem
from .cuts import Cut, CutKind, cut
from .formats import Format
from .meaning import Meaning
from .parser_oracle import STREAM, WHOLE, ParserAnswer, problem

ParserReply = Mapping[str, Any]
"""Reply of the host to one question: the answers for the whole text (``whole``) and for each cut
(``streams``)."""


class ParserQuestion(Document, frozen=True, omit_defaults=False):
    """An answer in a parser's format, and its cuts."""

    meaning: Meaning
    text: str
    cuts: Annotated[tuple[Cut, ...], Meta(max_length=20)]
    markers: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...], Meta(max_length=100)
    ]
    options: Mapping[str, str | bool | float]
    prompt: Annotated[str, Meta(max_length=1000)] = ""

    @classmethod
    def of(
        cls, meaning: Meaning, form: Format, kinds: Sequence[CutKind] = tuple(CutKind)
    ) -> ParserQuestion:
        """Return the question of a meaning that the format can write (``Format.fitted``), cut in
        these ways. Equal meanings are cut equally."""
        text = form.text(meaning)
        seed = zlib.crc32(text.encode("utf-8", "surrogatepass"))
        cuts = tuple(cut(text, form.tokens, kind, seed) for kind in kinds)
        return cls(meaning, text, cuts, form.tokens, form.options, form.prompt)

    def with_cuts(self, *cuts: Cut) -> ParserQuestion:
        """Return the question with these cuts alone."""
        return codec.replace(self, cuts=cuts)

    def to_request(self) -> dict[str, Any]:
        """Return what the host takes."""
        return {
            "text": self.text,
            "cuts": [list(cut.pieces) for cut in self.cuts],
            "ends": [cut.end_alone for cut in self.cuts],
            "options": dict(self.options),
            "prompt": self.prompt,
        }


def observations(
    question: ParserQuestion, reply: ParserReply
) -> list[tuple[ParserQuestion, Problem]]:
    """Return all problems that a reply shows, each with the cut that shows it alone, or without
    cuts if the whole text does.

    A stream that is wrong as the whole text is wrong is not a second problem.
    """

    def judged(answer: Mapping[str, Any], side: str) -> Problem | None:
        return problem(question.meaning, ParserAnswer(**answer), side, question.markers)

    whole = judged(reply["whole"], WHOLE)
    seen = [(question.with_cuts(), whole)] if whole else []
    for one, streamed in zip(question.cuts, reply["streams"], strict=True):
        found = judged(streamed, STREAM)
        if found and not (whole and whole.kind == found.kind):
            seen.append((question.with_cuts(one), found))
    return seen
