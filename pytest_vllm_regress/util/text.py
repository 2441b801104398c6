"""Text for people: nothing in it steers a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` with control characters escaped, so that a result file cannot steer a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def bounded(text: str, limit: int) -> str:
    """``text``, or its two ends with a line between that counts what was left out; never longer than ``limit``."""
    if len(text) <= limit:
        return text
    half = max(0, (limit - 60) // 2)
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[len(text) - half :]}"
