"""What changed between two releases, restricted to what a project uses."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ...errors import UsageError
from ...util.text import markdown_cell, one_line
from ...util.validation import did_you_mean, format_value
from ..api_history.changes import SYMBOLS, ApiChange, changes, is_public
from ..api_history.lookup import Lookup, Missing, Symbol, Unknown
from ..api_history.store import History
from .model import Place, Project, Use
from .strings import PARSER_OPTIONS

SCHEMA_VERSION = 1
_SECTIONS = {
    "option": "options",
    "choice": "options",
    "environment": "environment",
    "route": "routes",
    "metric": "metrics",
}
_ENGINE_ARGUMENTS = "vllm.engine.arg_utils:EngineArgs"


@dataclasses.dataclass(frozen=True)
class UsedChange:
    """A change, and where the project uses what changed."""

    change: ApiChange
    places: tuple[Place, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            **dataclasses.asdict(self.change),
            "places": [dataclasses.asdict(place) for place in self.places],
        }


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
    places: dict[tuple[str, str], set[Place]] = collections.defaultdict(set)
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


def text(used_changes: Sequence[UsedChange], versions: tuple[str, str]) -> Iterator[str]:
    """Yield the lines of the report."""
    yield f"vLLM {versions[0]} -> {versions[1]}: {len(used_changes)} change{'' if len(used_changes) == 1 else 's'}"
    listed, new = _without_new_symbols(used_changes)
    if new:
        yield f"{new} of them are new symbols, which --json lists"
    section = ""
    for entry in listed:
        change = entry.change
        if change.section != section:
            section = change.section
            yield f"\n{section}:"
        words = f"{change.kind}{' to' if change.kind == 'moved' else ''}{f' {change.text}' if change.text else ''}"
        where = (
            f"  ({', '.join(map(str, entry.places[:3]))}{', ...' if len(entry.places) > 3 else ''})"
            if entry.places
            else ""
        )
        yield f"  {one_line(change.name)}: {one_line(words)}{one_line(where)}"


def _without_new_symbols(used_changes: Sequence[UsedChange]) -> tuple[list[UsedChange], int]:
    """Return the changes without added symbols that the project does not use yet, and the number of
    those."""
    remaining = [
        entry
        for entry in used_changes
        if entry.places or entry.change.section != SYMBOLS or entry.change.kind != "added"
    ]
    return remaining, len(used_changes) - len(remaining)


def markdown(used_changes: Sequence[UsedChange], versions: tuple[str, str]) -> str:
    """Return the report as a Markdown table."""
    lines = [
        f"vLLM {versions[0]} to {versions[1]}",
        "",
        "| section | name | change | used in |",
        "| --- | --- | --- | --- |",
    ]
    for entry in _without_new_symbols(used_changes)[0]:
        change = entry.change
        cells = (
            change.section,
            change.name,
            f"{change.kind} {change.text}".strip(),
            ", ".join(map(str, entry.places[:3])),
        )
        lines.append(f"| {' | '.join(markdown_cell(cell) or '-' for cell in cells)} |")
    return "\n".join(lines)


def to_json(used_changes: Sequence[UsedChange], versions: tuple[str, str]) -> dict[str, Any]:
    """Return plain values for ``--json``."""
    return {
        "schema": SCHEMA_VERSION,
        "from": versions[0],
        "to": versions[1],
        "changes": [entry.to_json() for entry in used_changes],
    }
