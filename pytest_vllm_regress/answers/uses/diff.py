"""What changed between two releases, and what of that a project uses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from ...errors import UsageError
from ...util.report import Report, Section
from ...util.validation import did_you_mean, format_value
from ..api_history.definitions import Option, Signature, signature_of
from ..api_history.lookup import Lookup, Missing, Symbol, Unknown
from ..api_history.store import MOVES, SECTIONS, History, Timeline, definition_at
from .strings import PARSER_OPTIONS
from .use import Place, Project, Use

TABLES = tuple(section for section in SECTIONS if section not in ("modules", "deprecations"))
SYMBOLS = "symbols"


@dataclass(frozen=True)
class ApiChange:
    """A change of a name of a section, or of a symbol (``module:name``). ``kind``: added, removed,
    moved or changed.

    ``text``: what is different, or the place to which it moved. ``imported``: the module only
    imports the symbol from another one.
    """

    section: str
    name: str
    kind: str
    text: str = ""
    imported: bool = False


def changes(history: History, before: int, after: int) -> Iterator[ApiChange]:
    """Yield what is different in the release ``after``: first options, variables and the like, then
    symbols by module."""
    for section in TABLES:
        for name, timeline in sorted(history.table(section).items()):
            yield from _change(section, name, timeline, before, after)
    for module in sorted(history.table("modules")):
        for name, timeline in sorted(history.symbols(module).items()):
            for change in _change(SYMBOLS, f"{module}:{name}", timeline, before, after):
                place = history.entry(MOVES, change.name, after)
                if change.kind == "removed" and place is not None:
                    change = replace(change, kind="moved", text=place)
                yield change


def is_public(change: ApiChange) -> bool:
    """Return whether a change is one that a user of vLLM looks for: no private name, and none that
    a module only imports."""
    if change.section != SYMBOLS:
        return True
    module, _, name = change.name.partition(":")
    parts = [part for part in (*module.split("."), *name.split(".")) if part != "__init__"]
    return not change.imported and not any(part.startswith("_") for part in parts)


def _change(
    section: str, name: str, timeline: Timeline, before: int, after: int
) -> Iterator[ApiChange]:
    old, new = (
        # None also if the name exists for type checkers only.
        None if text is None or text.startswith("?") else text
        for text in (definition_at(timeline, release) for release in (before, after))
    )
    imported = section == SYMBOLS and any((text or "").startswith("< ") for text in (old, new))
    if old == new or (imported and old is not None and new is not None):
        return  # also if it is now defined in another place, but still imported here
    if new is None:
        yield ApiChange(section, name, "removed", imported=imported)
    elif old is None:
        default = Option.of(new).default if section == "options" else ""
        shown = default and f"default {default}" if section in (SYMBOLS, "options") else new
        yield ApiChange(section, name, "added", shown, imported)
    elif text := difference(section, old, new):
        yield ApiChange(section, name, "changed", text)


def difference(section: str, old: str, new: str) -> str:
    """Describe how a definition changed; empty if the change is none that a caller can see."""
    if section == "options":
        return _option_difference(Option.of(old), Option.of(new))
    if section != SYMBOLS:
        return f"{old or 'none'} -> {new or 'none'}"
    before, after = signature_of(old), signature_of(new)
    if before is not None and after is not None:
        return _signature_difference(before, after)
    if old.startswith((": ", "= ")) and new.startswith((": ", "= ")):
        return "".join(_default("default", *(text.partition("= ")[2] for text in (old, new))))
    # What is assigned has no shape that a caller could see.
    return "" if old[:1] in ".:=" and new[:1] in ".:=" else f"{old} -> {new}"


def _default(what: str, old: str | None, new: str | None) -> list[str]:
    return [f"{what} {old or 'none'} -> {new or 'none'}"] if old != new else []


def _option_difference(old: Option, new: Option) -> str:
    parts = _default("default", old.default, new.default)
    if old.choices and new.choices:
        parts += _missing("no longer allows", old.choices, new.choices)
        parts += _missing("also allows", new.choices, old.choices)
    return "; ".join(parts)


def _signature_difference(old: Signature, new: Signature) -> str:
    before = {parameter.name: parameter for parameter in old.parameters}
    after = {parameter.name: parameter for parameter in new.parameters}
    added = (parameter for name, parameter in after.items() if name not in before)
    parts = _missing("takes no", before, after)
    parts += _missing("takes", (f"{p.name}{' (required)' * p.required}" for p in added), ())
    for name in filter(before.__contains__, after):
        if before[name].kind == "either" and after[name].kind == "keyword":
            parts.append(f"{name} only by keyword")
        parts += _default(f"default of {name}", before[name].default, after[name].default)
    return "; ".join(parts)


def _missing(what: str, names: Iterable[str], others: Collection[str]) -> list[str]:
    """Say which names are not among the others, if any."""
    missing = ", ".join(name for name in names if name not in others)
    return [f"{what} {missing}"] if missing else []


SCHEMA_VERSION = 1
_SECTIONS = {
    "option": "options",
    "choice": "options",
    "environment": "environment",
    "route": "routes",
    "metric": "metrics",
}
_ENGINE_ARGUMENTS = "vllm.engine.arg_utils:EngineArgs"


@dataclass(frozen=True)
class UsedChange:
    """A change, and where the project uses what changed."""

    change: ApiChange
    places: tuple[Place, ...] = ()

    def __str__(self) -> str:
        change = self.change
        what = f"{change.kind}{' to' if change.kind == 'moved' else ''} {change.text}".rstrip()
        more = ", ..." if len(self.places) > 3 else ""
        where = f"  ({', '.join(map(str, self.places[:3]))}{more})" if self.places else ""
        return f"{change.name}: {what}{where}"


def release_number(history: History, version: str) -> int:
    """Return the number of a release. Raises ``UsageError`` for one that is not in the history."""
    if version not in history.releases:
        close = did_you_mean(version, history.releases)
        raise UsageError(
            f"--diff {format_value(version)}: no release in the history, which has {history.releases[0]} to {history.releases[-1]}.{close}"
        )
    return history.releases.index(version)


def diff(history: History, before: int, after: int, project: Project | None) -> list[UsedChange]:
    """Return the changes that concern the project; without one, all that a user can see."""
    used_changes = changes(history, before, after)
    if project is None:
        return [UsedChange(change) for change in used_changes if is_public(change)]
    places = used_names(project.uses, [Lookup(history, number) for number in (before, after)])
    return [
        UsedChange(change, tuple(sorted(places[key], key=lambda place: place.order)))
        for change in used_changes
        if (key := (change.section, change.name)) in places or change.section == "requirements"
    ]


def used_names(uses: Iterable[Use], lookups: Sequence[Lookup]) -> dict[tuple[str, str], set[Place]]:
    """Return the sections and names that the project uses, each with its places."""
    places: dict[tuple[str, str], set[Place]] = defaultdict(set)
    for use in uses:
        for key in _keys(use, lookups):
            places[key].add(use.place)
    return places


def _keys(use: Use, lookups: Sequence[Lookup]) -> Iterator[tuple[str, str]]:
    if use.kind in _SECTIONS:
        yield _SECTIONS[use.kind], use.targets[0]
    elif use.kind == "parser":
        yield "parsers", f"{PARSER_OPTIONS[use.targets[0]]}:{use.detail}"
    else:
        for target in use.targets:
            module, _, name = target.rpartition(".")
            yield SYMBOLS, f"{module}:{name}"
            for lookup in lookups:
                try:
                    yield from _keys_of_symbol(use, lookup.find(target))
                except (Missing, Unknown):
                    continue


def _keys_of_symbol(use: Use, symbol: Symbol) -> Iterator[tuple[str, str]]:
    key = f"{symbol.module}:{symbol.name}"
    yield SYMBOLS, key
    if use.kind in ("call", "keyword"):
        yield SYMBOLS, f"{key}.__init__"
    if use.kind in ("override", "keyword"):
        yield SYMBOLS, f"{key}.{use.detail}"
    if use.kind == "keyword":
        yield SYMBOLS, f"{_ENGINE_ARGUMENTS}.{use.detail}"


def report(used_changes: Sequence[UsedChange], versions: tuple[str, str]) -> Report:
    """Return the changes for people."""
    count = len(used_changes)
    listed = [  # without added symbols that the project does not use yet
        entry
        for entry in used_changes
        if entry.places or entry.change.section != SYMBOLS or entry.change.kind != "added"
    ]
    new = count - len(listed)
    notes = (f"{new} of them are new symbols, which --format json lists",) if new else ()
    groups = groupby(listed, key=lambda entry: entry.change.section)
    sections = [Section(section, (tuple(map(str, entries)),)) for section, entries in groups]
    title = f"vLLM {versions[0]} -> {versions[1]}: {count} change{'' if count == 1 else 's'}"
    return Report(title, sections, notes)


def to_json(used_changes: Sequence[UsedChange], versions: tuple[str, str]) -> dict[str, Any]:
    """Return plain values for ``--format json``."""
    return {
        "schema": SCHEMA_VERSION,
        "from": versions[0],
        "to": versions[1],
        "changes": [{**vars(entry.change), "places": entry.places} for entry in used_changes],
    }
