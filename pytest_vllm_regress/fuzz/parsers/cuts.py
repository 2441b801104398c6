"""The kinds of cuts: how a text arrives in deltas. A marker that is a single token is never cut."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Sequence
from enum import StrEnum


class CutKind(StrEnum):
    """How the text arrives."""

    CHARACTERS = "characters"
    TOKENS = "tokens"
    SEVERAL = "several tokens"
    RUNS = "markers alone"
    ONCE = "at once"


@dataclasses.dataclass(frozen=True)
class Cut:
    """Pieces of a text.

    ``end_alone``: the end-of-sequence token comes in a delta of its own, without text.
    """

    pieces: tuple[str, ...]
    end_alone: bool = True


_WORD = re.compile(r" ?[^\W\d_]+|\d| ?(?:[^\w\s]|_)+|\s+|.")


def cut(text: str, markers: Sequence[str], kind: CutKind, seed: int) -> Cut:
    """Return a text in pieces. ``seed`` decides how many tokens come together (``SEVERAL``)."""
    if kind is CutKind.ONCE:
        return Cut((text,) if text else (), end_alone=False)
    runs = _runs(text, markers)
    if kind is CutKind.RUNS:
        return Cut(tuple(runs))
    if kind is CutKind.CHARACTERS:
        return Cut(tuple(piece for run in runs for piece in ([run] if run in markers else run)))
    tokens = [piece for run in runs for piece in ([run] if run in markers else _WORD.findall(run))]
    if kind is CutKind.TOKENS:
        return Cut(tuple(tokens))
    return Cut(_grouped(tokens, random.Random(seed)), end_alone=False)


def _runs(text: str, markers: Sequence[str]) -> list[str]:
    """Split into markers and the texts between them."""
    if not markers:
        return [text] if text else []
    longest_first = sorted(markers, key=len, reverse=True)
    return [part for part in re.split(f"({'|'.join(map(re.escape, longest_first))})", text) if part]


def _grouped(tokens: list[str], rng: random.Random) -> tuple[str, ...]:
    groups = []
    while tokens:
        size = rng.randint(1, 5)
        groups.append("".join(tokens[:size]))
        tokens = tokens[size:]
    return tuple(groups)
