"""What processes have logged: since a moment (``LogWindow``), during a wait (``LogFollower``), and at
the end of a log.

A text is masked when it is read for a verdict or a dossier (``util/masking.mask_log``), and from then
on has the type ``Masked``; what counts as a secret is decided in ``util/masking/scanner.py`` and by
the values that were registered. Masking a text again changes nothing, and happens where masked and
other text is joined (``dossier.py``, ``plugin/verdicts.py``). The search for a documented hang reads
the log as it is, and keeps only a masked excerpt.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ...util import patterns
from ...util.masking import Masked, join_masked, mask, mask_log
from ...util.text import truncate_middle

MAX_TAIL_BYTES = 6000
MAX_ERROR_CHARS = 400
MAX_CHARS = 100_000
"""Maximum characters kept of one log: its beginning and its end, so that neither the first error
nor the last is lost.

The nested tracebacks of one failed start can have 43,000 characters (vLLM 0.22, with the cause in
their middle).
"""
_MAX_BYTES = 2_000_000
_MAX_LOGS = 40
_KNOWN_AGAIN = 256
"""Bytes by which a place in a log is known again. Timestamps make them unique."""
_LEFT_OUT = re.compile(r"^\[\.\.\. \d+ bytes left out: a log is limited to ", re.MULTILINE)
_CHUNK = 1 << 18
_CARRY = 4096
_MOST_LINES = 20_000
_NUMBERS = re.compile(rb"0x[0-9a-f]+|\d+")
_RAYLET = re.compile(rb"\(raylet\b[^)]*\)")  # before what Ray's log monitor passes on
_EXCERPT = 200
_SEARCH_S = 1.0
_FOLLOWED = ("worker-*.err", "raylet.err", "raylet.out")
_RAY_LOGS = ("worker-*", "raylet.err", "raylet.out", "gcs_server.err")
# What vLLM and torch put before each line: the process, the rank, level and time and place.
_PREFIX = re.compile(
    r"(?:\(\w+(?: pid=\d+)?\) )?(?:\[rank\d+\]:\s?)?(?:(?:ERROR|CRITICAL) \S+ \S+ (?:\[\S+\] )?)?"
)
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_RAISED = re.compile(r"(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception)(?:: .*)?|\S.{0,60}: error: .+")
_GAP = re.compile(
    r"vllm_regress_target\.dialect\.signatures\.SimulationGap: (.*?)(?:\. Run this on another device|$)",
    re.MULTILINE,
)
_REFERS = re.compile(r"\babove\b|root cause")


class LogWindow:
    """The growth of a child's log, and of Ray's logs, since ``restart``.

    At first it holds the whole logs. For an engine the window begins when the test takes it and not
    with each request: an engine that one request has killed is often noticed only at the next one.
    For a probe it begins with each call.
    """

    def __init__(self, log: Path, ray_dir: Path | None = None) -> None:
        self._log = log
        self._ray_dir = ray_dir
        self._starts: dict[Path, tuple[int, bytes]] = {}
        self.missed = False
        """A test has read the window, and a part of it had been left out."""

    def restart(self) -> None:
        """Leave out everything logged so far."""
        self.missed = False
        self._starts = {path: _end_of(path) for path in self._paths()}

    def whole_text(self) -> Masked:
        """Return everything written since the start of the window, masked, for a test that may draw
        conclusions from what it does not find (``missed``)."""
        texts = []
        for path in self._paths():
            start, complete = self._start_of(path)
            text = _read_from(path, start)
            self.missed |= not complete or _size(path) - start > 2 * _MAX_BYTES
            self.missed |= _LEFT_OUT.search(text) is not None
            texts.append(text)
        return join_masked("\n", filter(None, texts))

    def text(self, max_chars: int = MAX_CHARS) -> Masked:
        """Return everything written since the start of the window, masked.

        Of a log with more than ``max_chars`` the middle is left out.
        """
        texts = (_read_from(path, self._start_of(path)[0]) for path in self._paths())
        return join_masked("\n", (truncate_middle(text, max_chars) for text in texts if text))

    def from_start(self) -> Masked:
        """Return everything that the processes have logged, also before the window, masked."""
        return join_masked("\n", filter(None, (_read_from(path, 0) for path in self._paths())))

    def _start_of(self, path: Path) -> tuple[int, bool]:
        """Return where the window begins in a log, and whether the log still has all that was
        written since: it was not shortened (``limits.trim``), or the bytes before would differ."""
        start, before = self._starts.get(path, (0, b""))
        with contextlib.suppress(OSError), path.open("rb") as log:
            log.seek(start - len(before))
            if log.read(len(before)) != before:
                return 0, False
        return start, True

    def _paths(self) -> list[Path]:
        return [self._log, *ray_logs(self._ray_dir, _MAX_LOGS)]


class LogFollower:
    """Follows what a process tree logs from now on: its own file and Ray's.

    ``size``: bytes, without what a raylet merely repeats. ``novel``: lines unlike any before.
    ``matches``: reads with a new match of ``pattern``.
    ``excerpt``: the first match, masked. The pattern is searched in the text as it was logged,
    because a secret may separate two words that it names.
    """

    def __init__(self, log: Path, ray_dir: Path | None, pattern: str | None = None) -> None:
        self.size = self.novel = self.matches = 0
        self.excerpt = Masked("")
        self._pattern = pattern
        self._log, self._ray_dir = log, ray_dir
        self._ends = {path: _size(path) for path in self._files()}
        self._carry: dict[Path, bytes] = {}
        self._lines: set[bytes] = set()

    def read(self) -> None:
        """Read what was logged since the last read, at most ``_CHUNK`` bytes per file."""
        matches = False
        for path in self._files():
            end, size = self._ends.get(path, 0), _size(path)
            if size == end:
                continue
            if size < end:  # the nanny removed the middle of a log that was too long
                self.size += end - size
                end = max(0, size - _CARRY)
            with suppress(OSError), path.open("rb") as file:
                file.seek(max(end, size - _CHUNK))
                new = file.read(size - file.tell())
                before = self._carry.get(path, b"")
                if (match := self._new_match(before, new)) is not None:
                    matches = True
                    self.excerpt = self.excerpt or match
                self._carry[path] = (before + new)[-_CARRY:]
                self._note(new, path.name.startswith("raylet"))
            self._ends[path] = size
        self.matches += matches

    def _new_match(self, before: bytes, new: bytes) -> Masked | None:
        """Return the first match of the pattern that ends in the new text, masked and truncated."""
        old_length = len(before.decode(errors="replace"))
        text = (before + new).decode(errors="replace")
        at = 0
        while self._pattern is not None:
            try:
                span = patterns.search(self._pattern, text[at:], _SEARCH_S)
            except patterns.PatternError:  # this wait goes on to its deadline
                self._pattern = None
                return None
            if span is None:
                return None
            start, end = at + span[0], at + span[1]
            if end > old_length:
                return Masked(mask(text[start:end])[:_EXCERPT])
            at = max(end, start + 1)
        return None

    def _note(self, text: bytes, by_raylet: bool) -> None:
        """Count lines.

        A repeated line of a raylet is no progress: it reports a nearly full disk every ten seconds.
        """
        for line in text.splitlines(keepends=True):
            plain = _NUMBERS.sub(b"#", line).strip()
            novel = bool(plain) and plain not in self._lines
            self.novel += novel
            if novel and len(self._lines) < _MOST_LINES:
                self._lines.add(plain)
            if novel or not (by_raylet or _RAYLET.search(line)):
                self.size += len(line)

    def _files(self) -> list[Path]:
        return [self._log, *_ray_files(self._ray_dir, _FOLLOWED)]


def log_tail(path: Path, limit: int = MAX_TAIL_BYTES) -> Masked:
    """Return the last ``limit`` bytes of a log file, masked; empty if there is no file."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(0, size - limit))
            text = log.read(limit).decode(errors="replace").strip()
    except OSError:
        return Masked("")
    if size <= limit:
        return mask(text)
    whole_lines = text.partition("\n")[2] or text  # a line cut in two could hold half a secret
    return Masked(f"[... {size - limit} bytes left out ...]\n{mask(whole_lines)}")


def root_cause(text: str) -> str:
    """Return the first error in a log as one line, from a traceback, a log record or a command
    line; empty if there is none.

    An error that only refers to another one ("above", "for root cause") is replaced by the next.
    Errors that Python ignored do not count.
    """
    lines = [_PREFIX.sub("", _COLOUR.sub("", line), count=1) for line in text.splitlines()]
    error, ignored = "", False
    for number, line in enumerate(lines):
        if line.startswith("Exception ignored in"):
            ignored = True
        elif _RAISED.fullmatch(line.rstrip()):
            more = itertools.takewhile(
                lambda follower: follower[:1].isspace() and follower.strip(), lines[number + 1 :]
            )
            message = " ".join(part.strip() for part in (line, *more))
            if not ignored and (not error or _REFERS.search(error)):
                error = error if error and _REFERS.search(message) else message
            ignored = False
    return error if len(error) <= MAX_ERROR_CHARS else f"{error[:MAX_ERROR_CHARS]}..."


def names_no_cause(error: str) -> bool:
    """Return whether the log has no error, or only one that refers to another."""
    return not error or _REFERS.search(error) is not None


def simulation_gap(text: str) -> str:
    """Return the feature that the simulated device reported as missing; empty if it reported none."""
    match = _GAP.search(text)
    return match.group(1).strip() if match else ""


def ray_logs(ray_dir: Path | None, limit: int = 8) -> list[Path]:
    """Return Ray's logs that may say why a worker or a raylet failed, newest first."""
    logs = [path for path in _ray_files(ray_dir, _RAY_LOGS) if path.stat().st_size]
    return sorted(logs, key=lambda path: path.stat().st_mtime, reverse=True)[:limit]


def _ray_files(ray_dir: Path | None, names: Iterable[str]) -> list[Path]:
    return [
        path
        for name in names
        for path in (ray_dir.glob(f"session_*/logs/{name}") if ray_dir else ())
        if not path.parent.parent.is_symlink()  # session_latest
    ]


def _read_from(path: Path, start: int) -> Masked:
    try:
        with path.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(start)
            head = log.read(min(_MAX_BYTES, size - start)) if size > start else b""
            tail = b""
            if size - start > _MAX_BYTES:
                log.seek(max(start + _MAX_BYTES, size - _MAX_BYTES))
                tail = log.read(_MAX_BYTES)
    except OSError:
        return Masked("")
    return mask_log((head + tail).decode(errors="replace").strip())


def _end_of(path: Path) -> tuple[int, bytes]:
    """Return the size of a log and its last bytes."""
    size = _size(path)
    with contextlib.suppress(OSError), path.open("rb") as log:
        log.seek(max(0, size - _KNOWN_AGAIN))
        return size, log.read(min(size, _KNOWN_AGAIN))
    return size, b""


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0
