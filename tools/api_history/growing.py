"""A history to which releases can be appended, and its file."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping

from pytest_vllm_regress.answers.api_history.store import (
    MOVES,
    SECTIONS,
    History,
    Table,
    definition_at,
    member_of,
)

from .moves import moved
from .snapshot import ApiSnapshot, Symbols

FORMAT = 1
_DAY = (1980, 1, 1, 0, 0, 0)


class GrowingHistory(History):
    def append(self, release: str, snapshot: ApiSnapshot) -> None:
        """Add a release that follows all others."""
        number = len(self.releases)
        before = self.symbols_at(number - 1) if number else {}
        gone = (module for module in self.table("modules") if self.symbols(module))
        for module in {*snapshot.symbols, *gone}:
            table = self._member(member_of(module)).setdefault(module, {})
            append(table, number, snapshot.symbols.get(module, {}))
        for section in SECTIONS:
            append(self.table(section), number, snapshot.tables[section])
        places = _at(self.table(MOVES), number - 1)
        kept = {key: place for key, place in places.items() if not _has(snapshot.symbols, key)}
        append(self.table(MOVES), number, {**kept, **moved(before, snapshot.symbols)})
        self.releases.append(release)

    def symbols_at(self, number: int) -> Symbols:
        """Return all symbols of a release."""
        return {
            module: _at(self.symbols(module), number)
            for module in _at(self.table("modules"), number)
        }

    def content(self) -> bytes:
        """Return the history as a file. Equal histories give equal bytes."""
        members: dict[str, object] = {"index.json": {"format": FORMAT, "releases": self.releases}}
        names = {f"{section}.json" for section in (*SECTIONS, MOVES)}
        names |= {member_of(module) for module in self.table("modules")}
        members |= {name: self._member(name) for name in names}
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, member in sorted(members.items()):
                text = json.dumps(member, separators=(",", ":"), ensure_ascii=False, sort_keys=True)
                archive.writestr(zipfile.ZipInfo(name, _DAY), text.encode(), zipfile.ZIP_LZMA)
        return buffer.getvalue()


def append(table: Table, release: int, definitions: Mapping[str, str]) -> None:
    """Add what changed in ``release``, which follows all that are in the table."""
    for name in {**definitions, **table}:
        timeline, definition = table.setdefault(name, []), definitions.get(name)
        if (timeline[-1] if timeline else None) != definition:
            timeline += [release, definition]


def _at(table: Table, number: int) -> dict[str, str]:
    """Return the definitions in a release."""
    texts = {name: definition_at(timeline, number) for name, timeline in table.items()}
    return {name: text for name, text in texts.items() if text is not None}


def _has(symbols: Symbols, key: str) -> bool:
    module, _, name = key.partition(":")
    return name in symbols.get(module, {})
