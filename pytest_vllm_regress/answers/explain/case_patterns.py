"""Which cases a line of a log shows: their patterns, each in the kind of line that the case names,
found by the literal texts of each pattern."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

from ...cases.model import Case
from ...errors import Part
from ...util.patterns import PatternError, search

MAX_TEXT = 4_000
"""Characters of a line that are searched, around the case's literal text."""
MAX_SECONDS = 10.0
"""Processor time for all searches for the pattern of one case.

Each alone may take seconds, and a log may have millions of lines.
"""
SHORTEST = 5
"""Characters of a literal text; shorter ones select too many lines."""
_TOKEN = re.compile(
    r"(?P<flags>\(\?[a-zA-Z-]+\))|(?P<escape>\\(?:[^\W\d_]|\d+))|\\(?P<quoted>.)|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])"
    r"|(?P<open>\()|(?P<close>\))|(?P<many>[*?]|\{\d*,?\d*\})\??\+?|(?P<plus>\+)\??|(?P<any>[.^$])|(?P<or>\|)|(?P<plain>.)",
    re.DOTALL,
)
_ASSERTION = re.compile(
    r"(?:\bAssertionError: |^Failed: |found in assertion, line \d+: )(.*)", re.DOTALL
)
_STACK = re.compile(r"\s+\S.{0,300} \([^()\s]+:\d+\)$")
_SPANS = re.compile(r"\\n|\[\\s\\S\]")
_EXCEPTION = re.compile(r"\b(?:\w*(?:Error|Exception)|SystemExit|KeyboardInterrupt)\b")
_NO_ANSWER = re.compile(r"no HTTP answer(?: within [\d.]+ s;|:) ?(.*)", re.DOTALL)
_NO_HTTP = "no HTTP answer"
_OF_EXCEPTIONS = frozenset({Part.EXCEPTION, Part.TRACEBACK, Part.ASSERTION})
_COMMON = "rror"
"""A text by which lines are selected anyway."""
_EXCEPTIONS = ("Error", "Exception", "SystemExit", "KeyboardInterrupt")
"""Texts of which every line with an exception contains one: see ``_EXCEPTION``."""
_ASSERTIONS = ("AssertionError: ", "Failed: ", "found in assertion")


@dataclass(frozen=True)
class PatternMatch:
    """A case of which a line of the kind ``part`` shows the symptom, or what it prints.

    ``printed``: the text is that of ``[symptom.log]``.
    """

    case: Case
    part: Part
    text: str
    printed: bool = False


@dataclass(frozen=True)
class _Wanted:
    """A pattern of a case. ``parts``: the kinds of lines that count; none for what a server or a
    client prints, which counts in any line."""

    case: Case
    pattern: str
    parts: frozenset[Part]

    @property
    def spans_lines(self) -> bool:
        return _SPANS.search(self.pattern) is not None

    def texts(self, text: str) -> Mapping[Part, str]:
        """Return the texts of a line in which the pattern counts."""
        if not self.parts:
            return {Part.LOG: text}
        return {part: found for part, found in _texts_by_part(text) if part in self.parts}


def _wanted(cases: Iterable[Case]) -> Iterator[_Wanted]:
    for case in cases:
        if case.log:
            yield _Wanted(case, case.log.pattern, frozenset())
        yield _Wanted(case, case.symptom.pattern, _parts(case))


class PatternIndex:
    """The patterns of all cases.

    ``too_slow``: why some are not searched any more, by id of the case.
    """

    def __init__(
        self, cases: Iterable[Case], clock: Callable[[], float] = time.process_time
    ) -> None:
        self._clock = clock
        self.too_slow: dict[str, str] = {}
        self._seconds: dict[str, float] = {}
        self._by_literal: dict[str, list[_Wanted]] = {}
        self._without_literal: list[_Wanted] = []
        self._all = tuple(_wanted(cases))
        for entry in self._all:
            literals = required_literals(entry.pattern)
            for literal in literals:
                # The time is printed between the words of "no HTTP answer: ...".
                printed = _NO_HTTP if literal.startswith(_NO_HTTP) else literal
                self._by_literal.setdefault(printed, []).append(entry)
            if not literals:
                self._without_literal.append(entry)
        self._not_asserted = self._beside({Part.ASSERTION})
        self._logged = self._beside(_OF_EXCEPTIONS)
        """Those of cases that a line at the level INFO can show."""
        self._spanning = {
            entry: required_literals(_SPANS.split(entry.pattern)[0])
            for entry in self._all
            if entry.spans_lines
        }
        """Patterns that span lines, with the texts of their first line."""
        self._begins = [literal for literals in self._spanning.values() for literal in literals]

    def _beside(self, parts: Set[Part]) -> dict[str, list[_Wanted]]:
        """Return the literals of patterns that count in other lines than those of ``parts``."""
        return {
            literal: entries
            for literal, entries in self._by_literal.items()
            if any(not entry.parts or entry.parts - parts for entry in entries)
        }

    def begins(self, text: str) -> bool:
        """Return whether a text that spans lines, such as a frame and its code, may begin here."""
        return any(map(text.__contains__, self._begins))

    def search_window(self, text: str) -> list[PatternMatch]:
        """Return the cases whose pattern matches several lines together."""
        parts = [part for part in Part if part is not Part.ASSERTION]
        matches = [
            self._match(entry, 0, dict.fromkeys(entry.parts.intersection(parts) or parts, text))
            for entry, literals in self._spanning.items()
            if any(map(text.__contains__, literals))
        ]
        return [match for match in matches if match is not None and "\n" in match.text]

    def line_literals(self) -> Iterator[bytes]:
        """Yield texts of which every line with a match contains one; lines with tracebacks must be
        searched, too."""
        yield from (text.encode() for text in (*_ASSERTIONS, *_EXCEPTIONS))
        for entry in self._all:
            if not entry.parts or entry.parts - _OF_EXCEPTIONS:
                for literal in required_literals(entry.pattern, preferred=_COMMON):
                    printed = _NO_HTTP if literal.startswith(_NO_HTTP) else literal
                    yield printed.encode("utf-8")

    def search(self, text: str, exceptions: bool = True) -> list[PatternMatch]:
        """Return the cases that a line shows (without its prefix), each once.

        ``exceptions``: whether the line may belong to an exception.
        """
        places = dict.fromkeys(self._without_literal, 0)
        literals = self._logged
        if exceptions:
            is_asserted = any(map(text.__contains__, _ASSERTIONS))
            literals = self._by_literal if is_asserted else self._not_asserted
        for literal in [literal for literal in literals if literal in text]:
            places |= dict.fromkeys(literals[literal], text.find(literal))
        found: dict[str, PatternMatch] = {}
        for entry, at in places.items():
            texts = entry.texts(text)
            if entry.parts and not exceptions:
                texts = {part: t for part, t in texts.items() if part not in _OF_EXCEPTIONS}
            match = self._match(entry, at, texts)
            if match and (match.printed or entry.case.id not in found):
                found[entry.case.id] = match
        return list(found.values())

    def _match(self, entry: _Wanted, at: int, texts: Mapping[Part, str]) -> PatternMatch | None:
        case = entry.case
        for part, text in texts.items():
            if case.id in self.too_slow:
                return None
            begin = max(0, at - MAX_TEXT // 2) if len(text) > MAX_TEXT else 0
            searched = text[begin : begin + MAX_TEXT]
            started = self._clock()
            try:
                span = search(entry.pattern, searched)
            except PatternError as error:
                self.too_slow[case.id] = str(error)
                return None
            seconds = self._seconds.get(case.id, 0.0) + self._clock() - started
            self._seconds[case.id] = seconds
            if seconds > MAX_SECONDS:
                self.too_slow[case.id] = (
                    f"the searches for its pattern took more than {MAX_SECONDS:g} s together"
                )
            if span is not None:
                return PatternMatch(case, part, searched[slice(*span)], not entry.parts)
        return None


def _parts(case: Case) -> frozenset[Part]:
    return frozenset(part for kind in case.symptom.kinds for part in case.symptom.parts_for(kind))


@functools.lru_cache(maxsize=8)
def _texts_by_part(text: str) -> tuple[tuple[Part, str], ...]:
    """Return the text of a line that a pattern may match, by part of a failure."""
    if match := _ASSERTION.search(text):
        return ((Part.ASSERTION, match[1]),)
    if match := _NO_ANSWER.search(text):
        return ((Part.ANSWER, f"no HTTP answer: {match[1]}"),)
    if _STACK.match(text):
        return ((Part.STACKS, text),)
    parts = [Part.LOG]
    if _EXCEPTION.search(text):
        parts += [Part.EXCEPTION, Part.TRACEBACK]
    return tuple((part, text) for part in parts)


@functools.cache
def required_literals(pattern: str, preferred: str = "") -> tuple[str, ...]:
    """Return texts of which every match contains at least one; empty if no text of ``SHORTEST``
    characters is certain. ``preferred``: a text that is better than any longer one."""
    alternatives: list[list[str]] = [[""]]
    depth = 0
    for token in _TOKEN.finditer(pattern):
        kind = token.lastgroup
        runs = alternatives[-1]
        if kind == "flags":
            return ()
        if kind in ("open", "close"):
            depth += 1 if kind == "open" else -1
            runs.append("")
        elif depth:
            continue
        elif kind in ("plain", "quoted"):
            runs[-1] += token[kind]
        elif kind == "or":
            alternatives.append([""])
        else:
            if kind == "many":
                runs[-1] = runs[-1][:-1]
            runs.append("")
    longest = tuple(
        max(runs, key=lambda run: (bool(preferred) and preferred in run, len(run)))
        for runs in alternatives
    )
    return longest if all(len(text) >= SHORTEST for text in longest) else ()
