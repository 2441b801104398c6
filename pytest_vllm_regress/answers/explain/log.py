"""Read a log once, in one direction, and explain it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import BinaryIO

from ...cases.model import Case
from . import phases, versions
from .explanation import CaseRecord, Explanation, LogMatch, Occurrence, findings_of, packages_of
from .log_lines import container_of, is_quiet, source_of, strip_prefix
from .phases import PhaseReader
from .reading import selected_lines
from .search import PatternIndex
from .tracebacks import HEAD, Failure, TracebackReader
from .unknown import UnknownFailures
from .versions import VersionReader

MAX_RECORDS = 1000
"""Maximum number of combinations of case, container and versions."""
_ESCAPED = re.compile(r"(?<!\\)\\n")
_REQUEST = "Received request "
"""Start of the line in which vLLM logs a prompt, which may contain any text."""


def explain(stream: BinaryIO, cases: Sequence[Case], source: str) -> Explanation:
    """Return what the log in ``stream`` shows.

    It is read to its end; memory does not grow with it.
    """
    reader = _LogReader(cases)
    reader.read(stream)
    return reader.explanation(source)


class _LogReader:
    def __init__(self, cases: Sequence[Case]) -> None:
        self._index = PatternIndex(cases)
        self._versions = VersionReader(
            affected.package for case in cases for affected in case.affected
        )
        self._tracebacks, self._phase, self._unknown = (
            TracebackReader(),
            PhaseReader(),
            UnknownFailures(),
        )
        self._packages = {case.id: packages_of(case) for case in cases}
        self._records: dict[tuple[str, str, tuple[tuple[str, str], ...]], CaseRecord] = {}
        """Records by case id, container, and the versions named so far."""
        self._records_left_out = 0
        self._matched: dict[str, tuple[int, frozenset[str]]] = {}
        """The last line with a match and the cases that it matched, by source."""
        self._matched_failures: list[tuple[frozenset[str], Failure, str, dict[str, str]]] = []
        """Failures whose text matches cases, as (case ids, failure, phase, versions)."""
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
        if text.startswith(_REQUEST):
            return
        container = container_of(prefix)
        self._versions.read(text, number, container)
        self._phase.read(text)
        if "cases/" in text:
            self._named.update(case_id for place, case_id in self._ids.items() if place in text)
        source = source_of(prefix)
        failure = self._tracebacks.read(source, text, number)
        matches = self._index.search(text, exceptions=not is_quiet(prefix))
        versions = self._versions.current(container) if matches or failure is not None else {}
        for match in matches:
            if (record := self._record(match.case, container, versions)) is not None:
                record.add([Occurrence(number, match, failure)], 1)
        if matches:
            self._matched[source] = number, frozenset(match.case.id for match in matches)
        if failure is not None:
            phase = self._phase.phase_of(failure)
            last, ids = self._matched.get(source, (0, frozenset()))
            if last < failure.first:
                self._unknown.add(failure, phase, versions)
            elif len(self._matched_failures) < MAX_RECORDS:
                self._matched_failures.append((ids, failure, phase, versions))

    def _record(self, case: Case, container: str, versions: dict[str, str]) -> CaseRecord | None:
        """Return the record of a case with these versions, or None if ``MAX_RECORDS`` is reached."""
        decisive = {
            name: version for name, version in versions.items() if name in self._packages[case.id]
        }
        key = case.id, container, tuple(sorted(decisive.items()))
        if key not in self._records and len(self._records) >= MAX_RECORDS:
            self._records_left_out += 1
            return None
        return self._records.setdefault(key, CaseRecord(case, decisive))

    def _findings(self) -> list[LogMatch]:
        """Return the documented failures.

        Versions that only later lines name complete those before them.
        """
        merged: dict[tuple[str, tuple[tuple[str, str], ...]], CaseRecord] = {}
        for (case_id, container, _), record in self._records.items():
            completed = self._versions.completed(record.versions, container)
            versions = {
                name: version
                for name, version in completed.items()
                if name in self._packages[case_id]
            }
            key = case_id, tuple(sorted(versions.items()))
            merged.setdefault(key, CaseRecord(record.case, versions)).add(
                record.occurrences, record.count
            )
        return findings_of(list(merged.values()), frozenset(self._named))

    def explanation(self, source: str) -> Explanation:
        """Return what was read."""
        findings = self._findings()
        found = {finding.case.id for finding in findings}
        for ids, failure, phase, named in self._matched_failures:
            if found.isdisjoint(ids):  # the text matched, but not where the case raises it
                self._unknown.add(failure, phase, named)
        unknown = self._unknown.groups(others=bool(findings))
        notes = [
            f"{case_id}: not searched to the end: {why}"
            for case_id, why in self._index.too_slow.items()
        ]
        if self._unknown.left_out:
            notes.append(f"{self._unknown.left_out} more failures without a case were not grouped")
        if self._records_left_out:
            notes.append(
                f"{self._records_left_out} more lines with documented failures were not counted: too many versions or containers"
            )
        if (first := self._tracebacks.unfinished()) is not None:
            notes.append(
                f"the log ends inside the traceback that begins on line {first}; its exception is missing"
            )
        return Explanation(
            source, tuple(self._versions.all.values()), tuple(findings), unknown, tuple(notes)
        )


def _records(text: str) -> list[str]:
    """Return the lines in a line of the log: several in a record that is written as JSON."""
    return _ESCAPED.split(text.replace('\\"', '"')) if text.lstrip().startswith("{") else [text]
