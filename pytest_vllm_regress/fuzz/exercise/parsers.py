"""The exercise of tool and reasoning parsers, without an engine: texts as their models write them,
whole and in several cuts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from ...engines.inputs.formats import Meaning
from ...engines.session import Session
from ...util.codec import replace
from ..drawing import drawn
from ..parsers.meaning import meanings
from ..parsers.parser_hunter import ParserHunter, ReadFormat
from ..parsers.parser_process import ParserProcess
from ..parsers.parser_question import CutKind, ParserQuestion, cut

PARSERS = "parsers"
"""Name of the station."""
SEED, COUNT = 5, 14
_KINDS = (CutKind.TOKENS, CutKind.SEVERAL, CutKind.ONCE)


def parser_answers(session: Session, environment: str) -> dict[str, Any]:
    """Return the answers by parser and text."""
    process = ParserProcess(session, environment)
    hunter = ParserHunter([process], environment, session.target(environment).versions)
    answers: dict[str, Any] = {}
    for part in hunter.readable():
        asked = list(_questions(part, drawn(meanings(), COUNT, SEED)))
        replies = process.ask(part.parser, part.form, asked)
        for question, reply in zip(asked, replies, strict=True):
            digest = hashlib.sha256(question.text.encode("utf-8", "surrogatepass")).hexdigest()[:6]
            name = f"{part}/{digest} {question.text[:80]!r}"
            streams = zip((one.kind for one in question.cuts), reply["streams"], strict=True)
            answers[name] = {"whole": reply["whole"], **{str(kind): one for kind, one in streams}}
    process.close()
    return answers


def _questions(part: ReadFormat, listed: Sequence[Meaning]) -> Iterator[ParserQuestion]:
    """Yield the inputs: whole texts, and texts that are cut, continued or repeated."""
    seen = set()
    for number, meaning in enumerate(listed):
        question = ParserQuestion.of(part.form.fitted(meaning), part.form, _KINDS)
        text = question.text
        others = (text[: len(text) * 2 // 3], f"{text} And so on.", f"{text}\n{text}")
        for one in (text, others[number % len(others)]):
            if one and one not in seen:
                seen.add(one)
                cuts = tuple(cut(one, question.markers, kind, number) for kind in _KINDS)
                yield replace(question, text=one, cuts=cuts)
