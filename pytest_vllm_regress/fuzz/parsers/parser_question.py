"""A question to a parser: a meaning in one format, cut in every way; and what the answers show.

A cut is how the text arrives in deltas. A marker that is a single token is never cut.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

from ...engines.inputs.formats import Format, Meaning
from ...util.codec import Document, Meta, replace
from ..finding import Problem
from .parser_oracle import STREAM, WHOLE, ParserAnswer, problem


class CutKind(StrEnum):
    """How the text arrives."""

    CHARACTERS = "characters"
    TOKENS = "tokens"
    SEVERAL = "several tokens"
    RUNS = "markers alone"
    ONCE = "at once"


class Cut(Document, frozen=True):
    """Pieces of a text.

    ``end_alone``: the end-of-sequence token comes in a delta of its own, without text.
    """

    kind: CutKind
    pieces: Annotated[tuple[str, ...], Meta(max_length=20000)]
    end_alone: bool = True


_WORD = re.compile(r" ?[^\W\d_]+|\d| ?(?:[^\w\s]|_)+|\s+|.")


def cut(text: str, markers: Sequence[str], kind: CutKind, seed: int) -> Cut:
    """Return a text in pieces. ``seed`` decides how many tokens come together (``SEVERAL``)."""
    if kind is CutKind.ONCE:
        return Cut(kind, (text,) if text else (), end_alone=False)
    pieces = _runs(text, markers)
    if kind is not CutKind.RUNS:
        word = re.compile(".", re.DOTALL) if kind is CutKind.CHARACTERS else _WORD
        pieces = [
            piece for run in pieces for piece in ([run] if run in markers else word.findall(run))
        ]
    if kind is CutKind.SEVERAL:
        pieces = _grouped(pieces, random.Random(seed))
    return Cut(kind, tuple(pieces), end_alone=kind is not CutKind.SEVERAL)


def _runs(text: str, markers: Sequence[str]) -> list[str]:
    """Split into markers and the texts between them."""
    if not markers:
        return [text] if text else []
    longest_first = sorted(markers, key=len, reverse=True)
    return [part for part in re.split(f"({'|'.join(map(re.escape, longest_first))})", text) if part]


def _grouped(tokens: list[str], rng: random.Random) -> list[str]:
    groups = []
    while tokens:
        size = rng.randint(1, 5)
        groups.append("".join(tokens[:size]))
        tokens = tokens[size:]
    return groups


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
        return replace(self, cuts=cuts)

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
