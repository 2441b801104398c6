"""What changed between two releases, restricted to what a project uses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from ...errors import UsageError
from ...util.report import Report, Section
from ...util.validation import did_you_mean, format_value
from ..api_history.changes import SYMBOLS, ApiChange, changes, is_public
from ..api_history.lookup import Lookup, Missing, Symbol, Unknown
from ..api_history.store import History
from .strings import PARSER_OPTIONS
from .use import Place, Project, Use

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
        "changes": [
            {**asdict(entry.change), "places": list(map(asdict, entry.places))}
            for entry in used_changes
        ],
    }
