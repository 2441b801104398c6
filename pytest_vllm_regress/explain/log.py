"""Read a log once, in one direction, and explain it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import BinaryIO

from ..cases.model import Case
from . import phases, versions
from .explanation import CaseRecord, Explanation, Occurrence, findings_of
from .log_lines import source_of, strip_prefix
from .phases import PhaseReader
from .reading import selected_lines
from .search import PatternIndex
from .tracebacks import HEAD, TracebackReader
from .unknown import UnknownFailures
from .versions import VersionReader

_ESCAPED = re.compile(r"(?<!\\)\\n")


def explain(stream: BinaryIO, cases: Sequence[Case], source: str) -> Explanation:
    """Return what the log in ``stream`` shows. It is read to its end; memory does not grow with it."""
    reader = _LogReader(cases)
    reader.read(stream)
    return reader.explanation(source)


class _LogReader:
    def __init__(self, cases: Sequence[Case]) -> None:
        self._index = PatternIndex(cases)
        self._versions = VersionReader(affected.package for case in cases for affected in case.affected)
        self._tracebacks, self._phase, self._unknown = TracebackReader(), PhaseReader(), UnknownFailures()
        self._records: dict[str, CaseRecord] = {}
        self._matched: dict[str, int] = {}
        """The last line with a match, by source."""
        self._named: set[str] = set()
        self._ids = {f"cases/{case.directory.name}/": case.id for case in cases}

    def read(self, stream: BinaryIO) -> None:
        literals = (
            HEAD.encode(),
            b"cases/",
            *self._index.line_literals(),
            *versions.LITERALS,
            *phases.LITERALS,
        )
        for line in selected_lines(stream, literals, self._tracebacks.is_open):
            for text in _records(line.text):
                self._read_line(line.number, text)

    def _read_line(self, number: int, line: str) -> None:
        prefix, text = strip_prefix(line)
        self._versions.read(text, number)
        self._phase.read(text)
        if "cases/" in text:
            self._named.update(case_id for place, case_id in self._ids.items() if place in text)
        source = source_of(prefix)
        failure = self._tracebacks.read(source, text, number)
        for match in self._index.search(text):
            self._matched[source] = number
            record = self._records.setdefault(match.case.id, CaseRecord(match.case))
            record.add(Occurrence(number, match, failure, self._versions.current()))
        if failure is not None and self._matched.get(source, 0) < failure.first:
            self._unknown.add(failure, self._phase.phase_of(failure), self._versions.current())

    def explanation(self, source: str) -> Explanation:
        """Return what was read."""
        findings = findings_of(list(self._records.values()), self._versions.completed({}), frozenset(self._named))
        notes = [f"{case_id}: not searched to the end: {why}" for case_id, why in self._index.too_slow.items()]
        if self._unknown.left_out:
            notes.append(f"{self._unknown.left_out} more failures without a case were not grouped")
        return Explanation(
            source, tuple(self._versions.all.values()), tuple(findings), self._unknown.groups(), tuple(notes)
        )


def _records(text: str) -> list[str]:
    """Return the lines in a line of the log: several in a record that is written as JSON."""
    return _ESCAPED.split(text.replace('\\"', '"')) if text.lstrip().startswith("{") else [text]
