"""Text for people: nothing in it steers a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` with control characters escaped, so that a result file cannot steer a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
