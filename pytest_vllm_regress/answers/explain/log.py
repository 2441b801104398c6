"""Read a log once, in one direction, and explain it."""

from __future__ import annotations

import codecs
import contextlib
import io
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO

from ...cases.model import Case
from ...errors import UsageError
from ...util.files import existing_path, open_nonblocking
from .case_patterns import PatternIndex
from .explanation import (
    CaseOccurrences,
    Explanation,
    Occurrence,
    UnknownFailures,
    findings_of,
    packages_of,
)
from .log_lines import (
    VERSION_LITERALS,
    VersionReader,
    container_of,
    is_quiet,
    selected_lines,
    source_of,
    strip_prefix,
)
from .tracebacks import HEAD, PHASE_LITERALS, LoggedFailure, TracebackReader

MAX_RECORDS = 1000
"""Maximum number of combinations of case, container and versions."""
_ESCAPED = re.compile(r"(?<!\\)\\n")
_REQUEST = "Received request "
"""Start of the line in which vLLM logs a prompt, which may contain any text."""
Versions = tuple[tuple[str, str], ...]
_LOOKED_AT = 4096
_COMPRESSED = {
    b"\x1f\x8b": ("gzip", "gzip -cd"),
    b"BZh": ("bzip2", "bzip2 -cd"),
    b"\xfd7zXZ\0": ("xz", "xz -cd"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -cd"),
}
"""Compression formats by the first bytes of a file: name, and the command that decompresses it."""


@contextlib.contextmanager
def opened(file: str, warn: Callable[[str], None]) -> Iterator[BinaryIO]:
    if file == "-":
        _check(sys.stdin.buffer, "standard input", warn)
        yield sys.stdin.buffer
        return
    path = existing_path(file)
    if not path.is_file():
        problem = "not a regular file" if path.exists() else "no such file"
        raise UsageError(
            f"{file}: {problem}. Give a log, or - for standard input: COMMAND | vllm-regress explain -"
        )
    try:
        with open(path, "rb", opener=open_nonblocking) as stream:
            _check(stream, file, warn)
            yield stream
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from None


def _check(stream: BinaryIO, source: str, warn: Callable[[str], None]) -> None:
    """Warn about an empty log. Raises ``UsageError`` for UTF-16, compressed and binary files."""
    if not isinstance(stream, io.BufferedReader):
        return
    beginning = stream.peek(_LOOKED_AT)[:_LOOKED_AT]
    if not beginning:
        warn(f"note: {source} is empty")
    if beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UsageError(f"{source}: is in UTF-16. Convert it first: iconv -f UTF-16 -t UTF-8")
    for start, (name, command) in _COMPRESSED.items():
        if beginning.startswith(start):
            raise UsageError(
                f"{source}: is compressed by {name}. Unpack it first: {command} LOG | vllm-regress explain -"
            )
    if b"\0" in beginning:
        raise UsageError(f"{source}: is not text: it contains NUL bytes")


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
        self._packages = {case.id: packages_of(case) for case in cases}
        self._versions = VersionReader(name for names in self._packages.values() for name in names)
        self._tracebacks = TracebackReader()
        self._unknown = UnknownFailures()
        self._shown: dict[tuple[str, str, Versions], CaseOccurrences] = {}
        """Lines that show a case by its id, container, and the versions named so far."""
        self._left_out = 0
        self._matched: dict[str, tuple[int, frozenset[str]]] = {}
        """The last line with a match and the cases that it matched, by source."""
        self._matched_failures: list[tuple[frozenset[str], LoggedFailure, dict[str, str]]] = []
        """Failures whose text matches cases, as (case ids, failure, versions)."""
        self._named: set[str] = set()
        """Cases of which the log names a file, as the output of pytest does."""
        self._ids = {f"cases/{case.directory.name}/": case.id for case in cases}

    def read(self, stream: BinaryIO) -> None:
        literals = (
            HEAD.encode(),
            b"cases/",
            *self._index.line_literals(),
            *VERSION_LITERALS,
            *PHASE_LITERALS,
        )
        for number, line in selected_lines(stream, literals, self._tracebacks.is_open):
            for text in _lines_in(line):
                self._read_line(number, text)

    def _read_line(self, number: int, line: str) -> None:
        prefix, text = strip_prefix(line)
        if text.startswith(_REQUEST):
            return
        container, source = container_of(prefix), source_of(prefix)
        self._versions.read(text, number, container)
        if "cases/" in text:
            self._named.update(case_id for place, case_id in self._ids.items() if place in text)
        failure = self._tracebacks.read(source, text, number)
        matches = self._index.search(text, exceptions=not is_quiet(prefix))
        if not matches and failure is None:
            return
        versions = self._versions.current(container)
        for match in matches:
            self._count(container, versions, Occurrence(number, match, failure))
        if matches:
            self._matched[source] = number, frozenset(match.case.id for match in matches)
        if failure is not None:
            last, ids = self._matched.get(source, (0, frozenset()))
            if last < failure.first:
                self._unknown.add(failure, versions)
            elif len(self._matched_failures) < MAX_RECORDS:
                self._matched_failures.append((ids, failure, versions))

    def _count(self, container: str, versions: Mapping[str, str], occurrence: Occurrence) -> None:
        case = occurrence.match.case
        decisive = self._decisive(case.id, versions)
        key = case.id, container, tuple(sorted(decisive.items()))
        if key not in self._shown and len(self._shown) >= MAX_RECORDS:
            self._left_out += 1
        else:
            self._shown.setdefault(key, CaseOccurrences(case, decisive)).add([occurrence], 1)

    def _decisive(self, case_id: str, versions: Mapping[str, str]) -> dict[str, str]:
        return {name: text for name, text in versions.items() if name in self._packages[case_id]}

    def explanation(self, source: str) -> Explanation:
        """Return what was read.

        Versions that only later lines name complete those before them.
        """
        merged: dict[tuple[str, Versions], CaseOccurrences] = {}
        for (case_id, container, _), shown in self._shown.items():
            completed = self._versions.completed(shown.versions, container)
            versions = self._decisive(case_id, completed)
            key = case_id, tuple(sorted(versions.items()))
            entry = merged.setdefault(key, CaseOccurrences(shown.case, versions))
            entry.add(shown.kept, shown.count)
        findings = findings_of(list(merged.values()), frozenset(self._named))
        found = {finding.case.id for finding in findings}
        for ids, failure, versions in self._matched_failures:
            if found.isdisjoint(ids):  # the text matched, but not where the case raises it
                self._unknown.add(failure, versions)
        return Explanation(
            source,
            tuple(self._versions.all.values()),
            tuple(findings),
            self._unknown.groups(others=bool(findings)),
            tuple(self._notes()),
        )

    def _notes(self) -> Iterator[str]:
        for case_id, why in self._index.too_slow.items():
            yield f"{case_id}: not searched to the end: {why}"
        if self._unknown.left_out:
            yield f"{self._unknown.left_out} more failures without a case were not grouped"
        if self._left_out:
            yield f"{self._left_out} more lines with documented failures were not counted: too many versions or containers"
        if (first := self._tracebacks.unfinished()) is not None:
            yield f"the log ends inside the traceback that begins on line {first}; its exception is missing"


def _lines_in(text: str) -> list[str]:
    """Return the lines in a line of the log: several in a record that is written as JSON."""
    return _ESCAPED.split(text.replace('\\"', '"')) if text.lstrip().startswith("{") else [text]
