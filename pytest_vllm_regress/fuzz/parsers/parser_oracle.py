"""What is wrong with a parser's answer: it must be what was meant, whole and in every cut."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...engines.inputs.formats import Meaning
from ..finding import Problem

NO_ANSWER, DEATH = "no answer", "death of the process"
NO_EXCEPTIONS = (NO_ANSWER, DEATH)
WHOLE = "whole"
STREAM = "stream"


@dataclass(frozen=True)
class ParserAnswer:
    """A parser's answer. ``error``: type, message and place of an exception instead of an answer.

    ``finished``: a finish reason came.
    """

    reasoning: str = ""
    content: str = ""
    calls: Sequence[Sequence[str]] = ()
    finished: bool = True
    error: Sequence[str] = ()


def problem(
    meant: Meaning, answer: ParserAnswer, side: str, markers: Sequence[str]
) -> Problem | None:
    """Return the worst problem of an answer, None if it is what was meant.

    ``side``: ``whole`` or ``stream``, the key of the problem.
    """
    for kind, words in _problems(meant, answer, markers):
        # Halves of a surrogate pair cannot be printed.
        return Problem(kind, words.encode("utf-8", "backslashreplace").decode(), side)
    return None


def _problems(
    meant: Meaning, answer: ParserAnswer, markers: Sequence[str]
) -> Iterator[tuple[str, str]]:
    if answer.error:
        name, message, place = answer.error
        where = f" in {place.partition(' in ')[0]}" if place else ""
        kind = name if name in NO_EXCEPTIONS else f"raises {name}{where}"
        yield kind, f"{name}: {message} ({place})" if place else f"{name}: {message}"
        return
    yield from _of_calls(meant, answer)
    yield from _of_texts(meant, answer, markers)
    if not answer.finished:
        yield "no end", "the stream has no finish reason"


def _of_calls(meant: Meaning, answer: ParserAnswer) -> Iterator[tuple[str, str]]:
    expected = [(call.name, dict(call.arguments)) for call in meant.calls]
    shown = f"expected {_shown(expected)}, got {_shown(answer.calls)}"
    if len(answer.calls) != len(expected):
        if not expected:
            yield "call invented", shown
        elif not answer.calls:
            yield "all calls lost", shown
        else:
            yield ("call lost" if len(answer.calls) < len(expected) else "call doubled"), shown
        return
    for (name, arguments), (got_name, got) in zip(expected, answer.calls, strict=True):
        if name != got_name:
            yield ("name lost" if not got_name else "name changed"), shown
        kind = _of_arguments(arguments, got)
        if kind:
            yield kind, shown


def _of_arguments(expected: dict[str, Any], text: str) -> str:
    """Return what is wrong with the arguments of a call; empty if they are right."""
    if not text:
        return "arguments lost" if expected else "no arguments instead of {}"
    try:
        got = json.loads(text)
    except ValueError:
        whole = json.dumps(expected, ensure_ascii=False)
        return (
            "arguments cut off"
            if whole.startswith(text) or text.count("{") > text.count("}")
            else "arguments are no JSON"
        )
    if same(expected, got):
        return ""
    if not isinstance(got, dict):
        return "arguments are no object"
    if not got:
        return "arguments replaced by {}"
    if missing := expected.keys() - got.keys():
        return (
            "argument lost"
            if missing < expected.keys() or not got.keys() - expected.keys()
            else "arguments renamed"
        )
    if got.keys() - expected.keys():
        return "argument invented"
    wrong = next(key for key in expected if not same(expected[key], got[key]))
    return "type changed" if _kind(expected[wrong]) is not _kind(got[wrong]) else "value changed"


def same(expected: Any, got: Any) -> bool:
    """Return whether two JSON values are equal.

    Numbers are compared by value, and true is no number.
    """
    if isinstance(expected, dict) and isinstance(got, dict):
        return expected.keys() == got.keys() and all(
            same(expected[key], got[key]) for key in expected
        )
    if isinstance(expected, list) and isinstance(got, list):
        return len(expected) == len(got) and all(map(same, expected, got))
    return _kind(expected) is _kind(got) and bool(expected == got)


def _kind(value: Any) -> type:
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def _of_texts(
    meant: Meaning, answer: ParserAnswer, markers: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Compare without outer space, which formats put around their markers."""
    reasoning, content = answer.reasoning.strip(), answer.content.strip()
    if (reasoning, content) == (meant.reasoning.strip(), meant.content.strip()):
        return
    shown = f"expected {_texts(meant.reasoning, meant.content)}, got {_texts(answer.reasoning, answer.content)}"
    if leaked := next((marker for marker in markers if marker in reasoning + content), None):
        yield "marker leaked", f"{shown}: {leaked}"
    elif meant.reasoning and meant.reasoning.strip() in content:
        yield "reasoning in the content", shown
    elif meant.content and not content and meant.content.strip() in reasoning:
        yield "content in the reasoning", shown
    else:
        yield from _of_text("reasoning", meant.reasoning.strip(), reasoning, shown)
        yield from _of_text("content", meant.content.strip(), content, shown)


def _of_text(name: str, expected: str, got: str, shown: str) -> Iterator[tuple[str, str]]:
    if expected == got:
        return
    if not got:
        yield f"{name} lost", shown
    elif got in expected:
        yield f"part of the {name} lost", shown
    elif expected and got == expected * 2:
        yield f"{name} doubled", shown
    else:
        yield (f"more {name} than meant" if expected in got else f"{name} changed"), shown


def _texts(reasoning: str, content: str) -> str:
    return (
        f"reasoning {reasoning!r} and content {content!r}" if reasoning else f"content {content!r}"
    )


def _shown(calls: Sequence[Sequence[Any]]) -> str:
    parts = [
        f"{name}({arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)})"
        for name, arguments in calls
    ]
    return ", ".join(parts) or "no call"
