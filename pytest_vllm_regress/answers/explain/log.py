"""Read a log once, in one direction, and explain it."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import functools
import gzip
import importlib
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO, cast

from ...cases.model import Case
from ...errors import UsageError
from ...util.files import existing_path, open_nonblocking
from . import diagnoses
from .case_patterns import PatternIndex, PatternMatch
from .error_lines import (
    ERROR_LITERALS,
    RARE_LITERALS,
    REQUEST,
    announces,
    is_written,
    read_announced,
    read_error,
    read_line,
)
from .explanation import (
    CaseOccurrences,
    Explanation,
    Occurrence,
    credible,
    findings_of,
    packages_of,
)
from .failures import UnknownFailures
from .json_records import lines_in
from .log_lines import (
    MAX_SETTINGS,
    SETTING_LITERALS,
    VERSION_LITERALS,
    WRITTEN_LITERALS,
    VersionReader,
    selected_lines,
    settings_in,
)
from .prefixes import LogLine, container_of, strip_prefix
from .tracebacks import FRAME_LITERALS, PHASE_LITERALS, FailureForm, LoggedFailure, TracebackReader

MAX_WINDOW = 40
"""Lines in which a text that spans lines must end."""
MAX_WIDTH = 500
"""Characters of each of these lines that are searched."""
MAX_CONTINUED = 3
"""Lines after an error in which its message goes on."""
MAX_ANNOUNCED = 3
"""Lines after "the error is:" in which the error stands."""
MAX_NOTED = 5
MAX_BEGINNING = 64 * 1024
"""Bytes of the beginning that are kept as they are: of a report, all."""
MAX_RECORDS = 1000
"""Maximum number of combinations of case, container and versions."""
Versions = tuple[tuple[str, str], ...]
_LOOKED_AT = 4096


@functools.cache
def _zstd_library() -> Any:
    """Return Python 3.14's module for zstd, or the one of the extra, or None."""
    for name in ("compression.zstd", "zstandard"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    return None


def _zstd(stream: BinaryIO) -> object:
    library = _zstd_library()
    if library is None:
        raise UsageError(
            "a log that zstd compressed needs Python 3.14 or pip install 'pytest-vllm-regress[zstd]'. "
            "Or unpack it: zstd -cd LOG | vllm-regress explain -"
        )
    if hasattr(library, "ZstdFile"):
        return library.open(stream, "rb")
    return library.ZstdDecompressor().stream_reader(stream, read_across_frames=True)


_COMPRESSED: Mapping[bytes, Callable[[BinaryIO], object]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
    b"\x28\xb5\x2f\xfd": _zstd,
}
"""Compression formats by the first bytes of a file."""


class _Recoded(io.RawIOBase):
    """A stream of UTF-16 as UTF-8."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-16")("replace")

    def read(self, size: int = -1) -> bytes:
        """Return about ``size`` bytes; nothing at the end."""
        while block := self._stream.read(size):
            if text := self._decoder.decode(block):
                return text.encode("utf-8", "replace")
        return b""


def _read_errors() -> tuple[type[Exception], ...]:
    zstd = [library.ZstdError] if (library := _zstd_library()) else []
    return (OSError, EOFError, lzma.LZMAError, zlib.error, *zstd)


@contextlib.contextmanager
def opened(file: str, warn: Callable[[str], None]) -> Iterator[BinaryIO]:
    """Open a log to read; "-" is standard input. Compressed logs and UTF-16 are decoded."""
    if file == "-":
        yield _decoded(sys.stdin.buffer, "standard input", warn)
        return
    path = existing_path(file)
    if not path.exists() or path.is_dir():
        problem = "a folder" if path.is_dir() else "no such file"
        raise UsageError(
            f"{file}: {problem}. Give a log, or - for standard input: COMMAND | vllm-regress explain -"
        )
    try:
        # Reading special files such as /proc/kmsg would block forever; a pipe may legitimately block.
        opener = None if path.is_fifo() else open_nonblocking
        with open(path, "rb", opener=opener) as stream:
            yield _decoded(stream, file, warn)
    except _read_errors() as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{file}: cannot be read: {reason}") from None


def _decoded(stream: BinaryIO, source: str, warn: Callable[[str], None]) -> BinaryIO:
    """Return the stream of the text. Warns about an empty log; raises ``UsageError`` for binary
    files."""
    if not isinstance(stream, io.BufferedReader):
        return stream
    beginning = stream.peek(_LOOKED_AT)[:_LOOKED_AT]
    if not beginning:
        warn(f"note: {source} is empty")
    if beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return cast(BinaryIO, _Recoded(stream))
    for start, unpack in _COMPRESSED.items():
        if beginning.startswith(start):
            return cast(BinaryIO, unpack(stream))
    if b"\0" in beginning:
        raise UsageError(f"{source}: is not text: it contains NUL bytes")
    return stream


def _names_a_field_later(message: str) -> bool:
    """Return whether a message of pydantic goes on in the next line, with the field and what is
    wrong with it."""
    return " validation error" in message and "[type=" not in message


def explain(stream: BinaryIO, cases: Sequence[Case], source: str, about: str = "") -> Explanation:
    """Return what the log in ``stream`` shows.

    It is read to its end; memory does not grow with it. ``about``: what the user says besides, such
    as a version or a message.
    """
    reader = _LogReader(cases)
    reader.read_words(about)
    beginning = _Beginning(stream)
    reader.read(cast(BinaryIO, beginning))
    return replace(reader.explanation(source), beginning=beginning.text)


class _Beginning:
    """A stream of which the beginning is kept."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._kept = stream, b""

    def read(self, size: int = -1) -> bytes:
        """Return about ``size`` bytes; nothing at the end."""
        block = self._stream.read(size) or b""  # None: a log of the kernel has no more just now
        self._kept += block[: MAX_BEGINNING - len(self._kept)]
        return block

    @property
    def text(self) -> str:
        return self._kept.decode("utf-8", "replace")


class _LogReader:
    def __init__(self, cases: Sequence[Case]) -> None:
        self._index = PatternIndex(cases)
        self._packages = {case.id: packages_of(case) for case in cases}
        self._versions = VersionReader(name for names in self._packages.values() for name in names)
        self._tracebacks = TracebackReader()
        self._unknown = UnknownFailures()
        self._shown: dict[tuple[str, str, Versions], CaseOccurrences] = {}
        """Lines that show a case by its id, container, and the versions named so far."""
        self._begun: LoggedFailure | None = None
        """An error whose message goes on in the next line."""
        self._window: list[str] = []
        """Lines since one with which a text that spans lines may begin."""
        self._window_left = 0
        """Lines after which no text that spans lines can end any more."""
        self._cut: list[int] = []
        """First lines of tracebacks without an exception."""
        self._announced = 0
        """The line that says that the next one is the message of an error."""
        self._left_out = 0
        self._matched: dict[str, tuple[int, frozenset[str]]] = {}
        """The last line with a match and the cases that it matched, by source."""
        self._matched_failures: list[tuple[frozenset[str], LoggedFailure, dict[str, str]]] = []
        """Failures whose text matches cases, as (case ids, failure, versions)."""
        self._named: set[str] = set()
        """Cases of which the log names a file, as the output of pytest does."""
        self._settings: dict[str, None] = {}
        """Names of models, parsers and architectures, in the order of the log."""
        self._ids = {f"cases/{case.directory.name}/": case.id for case in cases}

    def read(self, stream: BinaryIO) -> None:
        literals = (
            *FRAME_LITERALS,
            *ERROR_LITERALS,
            *diagnoses.line_literals(late=True),
            *self._index.line_literals(),
            *VERSION_LITERALS,
            *PHASE_LITERALS,
        )
        rare = (
            b"cases/",
            *RARE_LITERALS,
            *WRITTEN_LITERALS,
            *SETTING_LITERALS,
            *diagnoses.line_literals(late=False),
        )
        beginning = (*literals, *rare)
        for number, line in selected_lines(stream, literals, self._needs_more, beginning):
            for text in lines_in(line):
                self._read_line(number, LogLine(*strip_prefix(text)))
        for failure in self._tracebacks.cut():
            self._unknown.add(failure, self._versions.current())

    def read_words(self, about: str) -> None:
        """Read what the user says, as line 0."""
        for text in about.splitlines():
            self._read_line(0, LogLine("", text))

    def _read_line(self, number: int, line: LogLine) -> None:
        text = line.text
        if text.startswith(REQUEST):
            return
        container, source = container_of(line.prefix), line.source
        self._versions.read(text, number, container)
        if len(self._settings) < MAX_SETTINGS:
            self._settings.update(dict.fromkeys(settings_in(text)))
        if "cases/" in text:
            self._named.update(case_id for place, case_id in self._ids.items() if place in text)
        if is_written(text):
            return
        failure = self._tracebacks.read(source, text, number)
        if failure is not None and failure.form is FailureForm.CUT:
            self._cut = [*self._cut[:MAX_NOTED], failure.first]
            self._unknown.add(failure, self._versions.current(container))
            failure = None
        failure = failure or self._reported(line, number)
        matches = self._search(line)
        if not matches and failure is None:
            return
        versions = self._versions.current(container)
        for match in matches:
            self._count(container, versions, Occurrence(number, match, failure))
        if matches:
            self._matched[source] = number, frozenset(match.case.id for match in matches)
        if failure is not None:
            last, ids = self._matched.get(source, (0, frozenset()))
            if last < min(link.first for link in failure.chain()):
                self._unknown.add(failure, versions)
            elif len(self._matched_failures) < MAX_RECORDS:
                self._matched_failures.append((ids, failure, versions))

    def _needs_more(self) -> bool:
        return (
            bool(self._begun or self._window or self._announced > 0) or self._tracebacks.is_open()
        )

    def _search(self, line: LogLine) -> list[PatternMatch]:
        """Return the cases that a line shows, alone or with those before it."""
        matches = self._index.search(line.text, exceptions=not line.is_quiet)
        if self._tracebacks.is_foreign_frame(line.text):
            matches = []
        self._window_left -= 1
        if self._index.begins(line.text):
            self._window_left = MAX_WINDOW
        elif self._window_left <= 0:
            self._window.clear()
            return matches
        self._window = [*self._window[1 - MAX_WINDOW :], line.text[:MAX_WIDTH]]
        matches += self._index.search_window("\n".join(self._window))
        if matches:
            self._window.clear()
            self._window_left = 0
        return matches

    def _reported(self, line: LogLine, number: int) -> LoggedFailure | None:
        """Return the failure that a line outside a traceback reports."""
        if self._tracebacks.is_inside(line.source):
            return None
        if (begun := self._begun) is not None and line.text.strip():
            self._begun = None
            if number <= begun.last + MAX_CONTINUED:
                begun.message = f"{begun.message} {line.text.strip()}"[:1_500]
                self._begun = begun if _names_a_field_later(begun.message) else None
        if line.is_quiet:
            return None
        phase = self._tracebacks.phase()
        if failure := read_error(line, number, phase):
            goes_on = failure.message.endswith(("{", ":", "[", "("))
            self._begun = failure if goes_on or _names_a_field_later(failure.message) else None
            return failure
        if announces(line.text):
            self._announced = number
        elif line.text.strip().strip("`~") and self._announced > 0:
            is_near = number - self._announced <= MAX_ANNOUNCED
            self._announced = 0
            if is_near and (failure := read_announced(line, number, phase)):
                return failure
        return read_line(line, number, phase)

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
        self._unknown.complete(self._versions.completed)
        named = frozenset(self._named)
        findings = findings_of(list(merged.values()), named)
        findings = credible(findings, self._unknown.ranked().root, named)
        found = {finding.case.id for finding in findings}
        for ids, failure, versions in self._matched_failures:
            if found.isdisjoint(ids):  # the text matched, but not where the case raises it
                self._unknown.add(failure, versions)
        return Explanation(
            source,
            tuple(self._versions.all.values()),
            tuple(findings),
            self._unknown.ranked(),
            tuple(self._notes()),
            tuple(self._settings)[:MAX_SETTINGS],
        )

    def _notes(self) -> Iterator[str]:
        for case_id, why in self._index.too_slow.items():
            yield f"{case_id}: not searched to the end: {why}"
        if self._unknown.left_out:
            yield f"{self._unknown.left_out} more failures without a case were not grouped"
        if self._left_out:
            yield f"{self._left_out} more lines with documented failures were not counted: too many versions or containers"
        for line in self._cut[:MAX_NOTED]:
            yield f"the traceback that begins on line {line} has no exception: it is cut, or not understood"
        if (first := self._tracebacks.unfinished()) is not None:
            yield f"the log ends inside the traceback that begins on line {first}; its exception is missing"
