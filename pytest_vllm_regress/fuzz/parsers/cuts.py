"""The kinds of cuts: how a text arrives in deltas. A marker that is a single token is never cut."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

from ...util.codec import Document, Meta


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
