"""Stand-ins for a parser: one that is right, and faults that are planted in it.

They read the format of ``FORM``, and no vLLM is needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from pytest_vllm_regress.engines.inputs.formats import Format
from pytest_vllm_regress.fuzz.parsers.parser_question import ParserQuestion, ParserReply

FORM = Format(
    ("<call>", "</call>", "<think>", "</think>"),
    "<call>$call</call>",
    thinking=("<think>", "</think>"),
)
_PARTS = re.compile(
    r"<think>(?P<thought>.*?)</think>|<call>(?P<call>.*?)</call>|(?P<text>[^<]+|<)", re.DOTALL
)
Fault = Callable[[dict[str, Any], Sequence[str]], dict[str, Any]]
"""Changes the right answer of a stream that came in these pieces."""


def right(text: str) -> dict[str, Any]:
    """Return the right answer to a text."""
    answer: dict[str, Any] = {"reasoning": "", "content": "", "calls": [], "finished": True}
    for match in _PARTS.finditer(text):
        answer["reasoning"] += match["thought"] or ""
        answer["content"] += match["text"] or ""
        if match["call"] is not None:
            call = json.loads(match["call"])
            answer["calls"].append([call["name"], json.dumps(call["arguments"])])
    return answer


class StandIn:
    """A parser whose streams show ``fault``, and whose answers to whole texts are right.

    ``questions`` counts what it was asked.
    """

    def __init__(self, fault: Fault = lambda answer, pieces: answer) -> None:
        self._fault = fault
        self.questions = 0

    def __call__(self, questions: Sequence[ParserQuestion]) -> list[ParserReply]:
        self.questions += len(questions)
        return [
            {
                "whole": right(question.text),
                "streams": [self._fault(right(question.text), cut.pieces) for cut in question.cuts],
            }
            for question in questions
        ]


def loses_calls_that_come_at_once(answer: dict[str, Any], pieces: Sequence[str]) -> dict[str, Any]:
    if any(piece.count("<call>") and piece.count("</call>") for piece in pieces):
        return {**answer, "calls": []}
    return answer


def raises_at_letters_beyond_ascii(answer: dict[str, Any], pieces: Sequence[str]) -> dict[str, Any]:
    if any(not arguments.isascii() or "\\u" in arguments for _, arguments in answer["calls"]):
        return {"error": ["KeyError", "'x'", "parse in parsers/x.py"]}
    return answer


def never_ends_without_content(answer: dict[str, Any], pieces: Sequence[str]) -> dict[str, Any]:
    return answer if answer["content"] else {**answer, "finished": False}
