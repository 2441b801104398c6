"""Read the lines of a log that may matter, fast and with flat memory: literal texts select them, so
that the rest is never decoded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

BLOCK = 1 << 20
MAX_LINE = 16 * 1024
"""Bytes of a line that are looked at, around the text that selected it."""
_HALF = MAX_LINE // 2


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of the log: its number (from 1) and its text, where invalid UTF-8 is replaced."""

    number: int
    text: str


def selected_lines(
    stream: BinaryIO, literals: Iterable[bytes], more: Callable[[], bool]
) -> Iterator[Line]:
    """Yield the lines that contain one of ``literals``, and every line that follows one while
    ``more()`` holds.

    Of a line longer than ``MAX_LINE`` the surroundings of the literals are lines of their own, with
    the same number.
    """
    texts = tuple(dict.fromkeys(literals))
    number = 1
    for block in _blocks(stream):
        starts = _starts(block, texts)
        position = counted = index = 0
        while position < len(block):
            if more():
                start = position
            else:
                while index < len(starts) and starts[index] < position:
                    index += 1
                if index == len(starts):
                    break
                start = starts[index]
            number += block.count(b"\n", counted, start)
            counted = start
            end = block.find(b"\n", start)
            end = len(block) if end < 0 else end
            stop = min(end, start + MAX_LINE)
            yield Line(number, block[start:stop].decode("utf-8", "replace").rstrip("\r"))
            position = stop if stop < end else end + 1
            if stop < end and (index + 1 >= len(starts) or starts[index + 1] > end):
                position = end + 1
        number += block.count(b"\n", counted)


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the content in blocks that end with a line, except for a line longer than ``BLOCK``."""
    rest = b""
    while chunk := stream.read(BLOCK):
        block = rest + chunk
        end = block.rfind(b"\n") + 1
        if not end and len(block) < BLOCK:
            rest = block
            continue
        end = end or len(block)
        rest = block[end:]
        yield block[:end]
    if rest:
        yield rest


def _starts(block: bytes, texts: tuple[bytes, ...]) -> list[int]:
    """Return where the lines with a literal begin; in a long line, where the surroundings of each
    literal begin."""
    starts = set()
    for literal in texts:
        at = block.find(literal)
        while at >= 0:
            begin = block.rfind(b"\n", 0, at) + 1
            if at - begin > _HALF:
                begin += (at - begin) // _HALF * _HALF - _HALF // 2
            starts.add(begin)
            end = block.find(b"\n", at, begin + MAX_LINE)
            at = block.find(literal, end if end >= 0 else begin + MAX_LINE)
    return sorted(starts)
