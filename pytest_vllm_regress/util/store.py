"""Keyed entries in a file of JSON lines, appended one by one: progress that can be resumed, and
records.

The first line says what the file holds and for what (``key``). Each further line is an entry; the
last one of a name counts. A line that a crash cut off is ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..errors import UsageError
from . import codec
from .documents import parse_json
from .exclusive import Exclusive
from .files import append_line, read_bounded, write_atomically
from .validation import format_value

MAX_BYTES = 1024 * 1024 * 1024
T = TypeVar("T")


class Store(Generic[T]):
    """Entries of type ``kind`` by name.

    Args:
        what: what the file holds, for its first line and for messages: ``"progress of a
            bisection"``.
        key: what the entries belong to. A file with another key is refused.
        advice: what the user can do with a file that is refused: ``"give --fresh"``.
        fresh: do not read what the file holds; ``lock`` removes it.

    Raises ``UsageError`` for a file that is not such a store, or belongs to something else.
    """

    def __init__(
        self,
        path: Path,
        kind: type[T],
        *,
        what: str,
        key: Any = None,
        advice: str = "remove it",
        fresh: bool = False,
    ) -> None:
        self.path, self._kind, self._what, self._advice = path, kind, what, advice
        self._key = json.loads(json.dumps(codec.encode(key)))  # lists for tuples, as it is read
        self._lock = Exclusive(path, what)
        self._is_locked = False
        self._identity: tuple[int, int, int] | None = None
        """The file as it was read."""
        self._size = 0
        """Bytes of the complete lines. What stands behind them was cut off by a crash."""
        self._fresh = fresh
        self._entries: dict[str, T] = self._read() if path.exists() and not fresh else {}

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __getitem__(self, name: str) -> T:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> Mapping[str, T]:
        """The entries in the order in which their names were first added."""
        return self._entries

    def lock(self) -> None:
        """Keep other runs out until ``close`` or the end of this process. Raises ``UsageError``.

        Two identical commands would otherwise append to one file, and remove it from each other.
        """
        if self._is_locked:
            return
        self._lock.acquire()
        self._is_locked = True
        if self._fresh:
            self.remove()
        if not self.path.exists():
            self._entries, self._size = {}, 0
        elif _identity(self.path) != self._identity:
            self._entries = self._read()  # what a run before added

    def add(self, name: str, entry: T) -> None:
        """Append an entry, or replace the one of this name."""
        self.add_all({name: entry})

    def add_all(self, entries: Mapping[str, T]) -> None:
        """Append entries at once: a crash leaves all of them or none."""
        if not entries:
            return
        if not self._size:
            append_line(self.path, self._head(), truncate=True)
        elif self.path.stat().st_size > self._size:
            os.truncate(self.path, self._size)
        append_line(self.path, _line({n: codec.encode(entry) for n, entry in entries.items()}))
        self._size = self.path.stat().st_size
        self._entries.update(entries)

    def rewrite(self, entries: Mapping[str, T]) -> None:
        """Replace all entries, in this order, with one line for each: for files that are committed."""
        lines = [
            self._head(),
            *(_line({name: codec.encode(entry)}) for name, entry in entries.items()),
        ]
        write_atomically(self.path, "".join(f"{line}\n" for line in lines))
        self._size = self.path.stat().st_size
        self._entries = dict(entries)

    def remove(self) -> None:
        """Remove the file: what it is about is complete, or is to start over."""
        self.path.unlink(missing_ok=True)
        self._entries, self._size = {}, 0

    def close(self) -> None:
        """Let other runs use the file."""
        if self._is_locked:
            self._lock.release()
            self._is_locked = False

    def _head(self) -> str:
        return _line({"store": self._what, "key": self._key})

    def _read(self) -> dict[str, T]:
        self._identity = _identity(self.path)
        content = read_bounded(self.path, MAX_BYTES, what=self._what)
        complete = content[: content.rfind(b"\n") + 1]
        if not complete:
            return {}
        try:
            head, *documents = map(parse_json, complete.splitlines())
            if not isinstance(head, dict) or head.get("store") != self._what:
                raise UsageError(f"{self.path}: not {self._what}: {self._advice}")
            if head["key"] != self._key:
                raise UsageError(
                    f"{self.path}: {self._what} for something else ({format_value(head['key'])}): {self._advice}"
                )
            entries = {
                name: codec.decode(self._kind, plain, f"{self.path}, {name}")
                for document in documents
                for name, plain in document.items()
            }
        except (ValueError, KeyError, AttributeError) as error:
            raise UsageError(f"{self.path}: not {self._what} ({error}): {self._advice}") from None
        self._size = len(complete)
        return entries


def _identity(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _line(document: Mapping[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=True, allow_nan=False)  # the reader refuses NaN
