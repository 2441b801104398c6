"""A history to which releases can be appended, and its file."""

from __future__ import annotations

import collections
import io
import json
import zipfile
from collections.abc import Mapping

from pytest_vllm_regress.answers.api_history.definitions import bases_of, is_class, is_function
from pytest_vllm_regress.answers.api_history.store import (
    MOVES,
    SECTIONS,
    History,
    Table,
    definitions_at,
    member_of,
)

from .snapshot import ApiSnapshot, Symbols

FORMAT = 1
_DAY = (1980, 1, 1, 0, 0, 0)
SIMILAR = 0.5
"""Share of common members from which a class counts as the renamed form of another one."""
MIN_MEMBERS = 3


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
        places = definitions_at(self.table(MOVES), number - 1)
        kept = {key: place for key, place in places.items() if not _has(snapshot.symbols, key)}
        append(self.table(MOVES), number, kept | moved(before, snapshot.symbols))
        self.releases.append(release)

    def symbols_at(self, number: int) -> Symbols:
        """Return all symbols of a release."""
        return {
            module: definitions_at(self.symbols(module), number)
            for module in definitions_at(self.table("modules"), number)
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


def _has(symbols: Symbols, key: str) -> bool:
    module, _, name = key.partition(":")
    return name in symbols.get(module, {})


def moved(before: Symbols, after: Symbols) -> dict[str, str]:
    """Return where classes and functions of ``before`` are that ``after`` has no longer in that
    place, as ``module:name``."""
    places: dict[str, list[str]] = collections.defaultdict(list)
    for module, symbols in after.items():
        for name, definition in symbols.items():
            if "." not in name and (is_class(definition) or is_function(definition)):
                places[name].append(module)
    new_places = {}
    for module, symbols in before.items():
        now = after.get(module, {})
        for name, definition in symbols.items():
            disappeared = name not in now and "." not in name and not name.startswith("__")
            if disappeared and definition.startswith(("def", "async", "class", "@", "<", "=")):
                new = places.get(name, [])
                if definition.startswith("="):
                    # A name that __getattr__ made from one of the package's modules.
                    new = [candidate for candidate in new if candidate.startswith(f"{module}.")]
                if place := _place(module, name, new, before):
                    new_places[f"{module}:{name}"] = place
                elif renamed := _renamed(name, symbols, now):
                    new_places[f"{module}:{name}"] = f"{module}:{renamed}"
    return new_places


def _place(module: str, name: str, modules: list[str], before: Symbols) -> str:
    """Return the module that has the name now: the only one, or the most similar of those that did
    not have it."""
    origin = before[module][name].removeprefix("< ").partition(":")[0]
    if origin in modules:
        return f"{origin}:{name}"
    new = [candidate for candidate in modules if name not in before.get(candidate, {})]
    choice = new or (modules if len(modules) == 1 else [])
    best = max(choice, key=lambda candidate: _common(candidate, module), default="")
    return best and f"{best}:{name}"


def _renamed(name: str, before: dict[str, str], after: dict[str, str]) -> str:
    """Return the class of the same module that takes the place of the one that is gone: its base,
    or one with most of its members."""
    if not is_class(before[name]):
        return ""
    classes = [other for other, text in after.items() if is_class(text) and "." not in other]
    match bases_of(before[name]):
        case (base,) if base in classes and _shares_word(name, base):
            return base  # the old name was a subclass
    own = _members(before, name)
    if len(own) < MIN_MEMBERS:
        return ""
    candidates = [other for other in classes if other not in before]
    candidates += [other for other in classes if _shares_word(name, other)]
    members = {other: _members(after, other) for other in candidates}
    shares = {other: len(own & names) / len(own | names) for other, names in members.items()}
    best = max(shares, key=lambda other: shares[other], default="")
    return best if best and shares[best] >= SIMILAR else ""


def _members(symbols: dict[str, str], name: str) -> set[str]:
    prefix = f"{name}."
    return {symbol.removeprefix(prefix) for symbol in symbols if symbol.startswith(prefix)}


def _shares_word(one: str, other: str) -> bool:
    """Return whether two names end with the same letters, such as GuidedDecodingParams and
    StructuredOutputsParams."""
    return _common(one[::-1], other[::-1]) >= 5


def _common(one: str, other: str) -> int:
    """Return the number of characters that two names begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
