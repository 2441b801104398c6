"""Text for people: whatever it came from, nothing in it steers a terminal, hides, or pretends to be another line."""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` with everything as escapes that does not print: control characters, marks of direction, what has no width. Line breaks stay."""
    if text.isprintable():
        return text
    return "\n".join(map(_printable_line, text.split("\n")))


def one_line(text: str) -> str:
    """As ``printable``, with line breaks as escapes too: for a name, or a cell of a table."""
    return _printable_line(text).replace("\n", "\\n")


def _printable_line(line: str) -> str:
    return line if line.isprintable() else "".join(map(_printable_character, line))


def _printable_character(character: str) -> str:
    if character.isprintable() or character == "\n":
        return character
    return "    " if character == "\t" else ascii(character)[1:-1]


def bounded(text: str, limit: int) -> str:
    """``text``, or its two ends with a line between that counts what was left out; never longer than ``limit``."""
    if len(text) <= limit:
        return text
    half = max(0, (limit - 60) // 2)
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[len(text) - half :]}"
