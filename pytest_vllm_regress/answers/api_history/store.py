"""The history of vLLM's API as one file: a table of changes for each section, and for the symbols
of each package."""

from __future__ import annotations

import functools
import io
import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...util.paths import DATA
from .moves import moved
from .snapshot import SECTIONS, Snapshot, Symbols
from .timeline import Table, append, definition_at

FILE = DATA / "api_history.zip"
FORMAT = 1
MOVES = "moves"
_DAY = (1980, 1, 1, 0, 0, 0)


class History:
    """Releases of vLLM, oldest first, and what each has.

    Sections and packages are read from the file when they are first used.
    """

    def __init__(
        self, releases: Iterable[str] = (), archive: zipfile.ZipFile | None = None
    ) -> None:
        self.releases = list(releases)
        self._archive = archive
        self._names = set(archive.namelist()) if archive is not None else set()
        self._tables: dict[str, Table] = {}
        self._packages: dict[str, dict[str, Table]] = {}

    @staticmethod
    def load(path: Path = FILE) -> History:
        """Return the history in a file."""
        archive = zipfile.ZipFile(io.BytesIO(path.read_bytes()))
        index = json.loads(archive.read("index.json"))
        return History(index["releases"], archive)

    def table(self, section: str) -> Table:
        """Return the changes of a section: one of ``SECTIONS``, or the places to which symbols
        moved."""
        if section not in self._tables:
            self._tables[section] = self._read(f"{section}.json")
        return self._tables[section]

    def symbols(self, module: str) -> Table:
        """Return the changes of a module's symbols by qualified name; empty for an unknown module."""
        return self._package(_package_of(module)).get(module, {})

    def modules(self) -> Table:
        return self.table("modules")

    def append(self, release: str, snapshot: Snapshot) -> None:
        """Add a release that follows all others."""
        number = len(self.releases)
        before = self.symbols_at(number - 1) if number else {}
        for module in {
            *snapshot.symbols,
            *(known for known in self.modules() if self.symbols(known)),
        }:
            table = self._package(_package_of(module)).setdefault(module, {})
            append(table, number, snapshot.symbols.get(module, {}))
        for section in SECTIONS:
            append(self.table(section), number, snapshot.tables[section])
        kept = {
            key: place for key, place in self._moves().items() if not _has(snapshot.symbols, key)
        }
        append(self.table(MOVES), number, {**kept, **moved(before, snapshot.symbols)})
        self.releases.append(release)

    def symbols_at(self, number: int) -> Symbols:
        """Return all symbols of a release."""
        return {
            module: {
                name: definition
                for name, timeline in self.symbols(module).items()
                if (definition := definition_at(timeline, number)) is not None
            }
            for module, timeline in self.modules().items()
            if definition_at(timeline, number) is not None
        }

    def content(self) -> bytes:
        """Return the history as a file. Equal histories give equal bytes."""
        packages = {_package_of(module) for module in self.modules()}
        for package in packages:
            self._package(package)
        members: dict[str, object] = {"index.json": {"format": FORMAT, "releases": self.releases}}
        members |= {f"{section}.json": self.table(section) for section in (*SECTIONS, MOVES)}
        members |= {f"symbols/{package}.json": self._packages[package] for package in packages}
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, member in sorted(members.items()):
                text = json.dumps(member, separators=(",", ":"), ensure_ascii=False, sort_keys=True)
                archive.writestr(zipfile.ZipInfo(name, _DAY), text.encode(), zipfile.ZIP_LZMA)
        return buffer.getvalue()

    def _moves(self) -> dict[str, str]:
        last = len(self.releases) - 1
        places = {
            name: definition_at(timeline, last) for name, timeline in self.table(MOVES).items()
        }
        return {name: place for name, place in places.items() if place is not None}

    def _package(self, package: str) -> dict[str, Table]:
        if package not in self._packages:
            self._packages[package] = self._read(f"symbols/{package}.json")
        return self._packages[package]

    def _read(self, name: str) -> Any:
        return (
            json.loads(self._archive.read(name))
            if self._archive is not None and name in self._names
            else {}
        )


@functools.cache
def history() -> History:
    """Return the history that this package has."""
    return History.load()


def _package_of(module: str) -> str:
    """Return the part of the file with a module's symbols: its package, three names deep at most."""
    return ".".join(module.split(".")[:-1][:3])


def _has(symbols: Mapping[str, Mapping[str, str]], key: str) -> bool:
    module, _, name = key.partition(":")
    return name in symbols.get(module, {})
