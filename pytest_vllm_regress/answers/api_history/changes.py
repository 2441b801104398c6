"""What changed between two releases."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from .definitions import Signature, is_class, signature_of
from .service import Option
from .snapshot import SECTIONS
from .store import MOVES, History
from .timeline import Timeline, definition_at

TABLES = tuple(section for section in SECTIONS if section not in ("modules", "deprecations"))
SYMBOLS = "symbols"


@dataclasses.dataclass(frozen=True)
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

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def changes(history: History, before: int, after: int) -> Iterator[ApiChange]:
    """Yield what is different in the release ``after``: first options, variables and the like, then
    symbols by module."""
    for section in TABLES:
        for name, timeline in sorted(history.table(section).items()):
            yield from _change(section, name, timeline, before, after)
    moves = history.table(MOVES)
    for module in sorted(history.modules()):
        for name, timeline in sorted(history.symbols(module).items()):
            for change in _change(SYMBOLS, f"{module}:{name}", timeline, before, after):
                moved = moves.get(change.name)
                place = (
                    definition_at(moved, after)
                    if moved is not None and change.kind == "removed"
                    else None
                )
                yield (
                    dataclasses.replace(change, kind="moved", text=place)
                    if place is not None
                    else change
                )


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
    old, new = (_at_run_time(definition_at(timeline, release)) for release in (before, after))
    imported = section == SYMBOLS and any(
        text is not None and text.startswith("< ") for text in (old, new)
    )
    if old == new or (imported and old is not None and new is not None):
        return  # also if it is now defined in another place, but still imported here
    if new is None:
        yield ApiChange(section, name, "removed", imported=imported)
    elif old is None:
        yield ApiChange(
            section, name, "added", "" if section == SYMBOLS else _shown(section, new), imported
        )
    elif text := difference(section, old, new):
        yield ApiChange(section, name, "changed", text)


def _at_run_time(definition: str | None) -> str | None:
    """Return the definition, None if the name exists for type checkers only."""
    return None if definition is None or definition.startswith("?") else definition


def difference(section: str, old: str, new: str) -> str:
    """Describe how a definition changed; empty if the change is none that a caller can see."""
    if section == "options":
        return _option_difference(Option.of(old), Option.of(new))
    if section != SYMBOLS:
        return f"{old or 'none'} -> {new or 'none'}"
    signatures = signature_of(old), signature_of(new)
    if signatures[0] is not None and signatures[1] is not None:
        return _signature_difference(signatures[0], signatures[1])
    if old.startswith((": ", "= ")) and new.startswith((": ", "= ")):
        values = [text.partition("= ")[2] for text in (old, new)]
        return (
            f"default {values[0] or 'none'} -> {values[1] or 'none'}"
            if values[0] != values[1]
            else ""
        )
    if is_class(old) and is_class(new):
        return f"{old} -> {new}"
    return "" if old[:1] in ".:=" and new[:1] in ".:=" else f"{old} -> {new}"


def _option_difference(old: Option, new: Option) -> str:
    parts = (
        [f"default {old.default or 'none'} -> {new.default or 'none'}"]
        if old.default != new.default
        else []
    )
    if old.choices and new.choices:
        removed = [choice for choice in old.choices if choice not in new.choices]
        added = [choice for choice in new.choices if choice not in old.choices]
        parts += [f"no longer allows {', '.join(removed)}"] if removed else []
        parts += [f"also allows {', '.join(added)}"] if added else []
    return "; ".join(parts)


def _signature_difference(old: Signature, new: Signature) -> str:
    before = {parameter.name: parameter for parameter in old.parameters}
    after = {parameter.name: parameter for parameter in new.parameters}
    removed = [name for name in before if name not in after]
    added = [
        f"{name}{' (required)' if after[name].required else ''}"
        for name in after
        if name not in before
    ]
    parts = [f"takes no {', '.join(removed)}"] if removed else []
    parts += [f"takes {', '.join(added)}"] if added else []
    for name, parameter in after.items():
        earlier = before.get(name)
        if earlier is None:
            continue
        if earlier.kind == "either" and parameter.kind == "keyword":
            parts.append(f"{name} only by keyword")
        if earlier.default != parameter.default:
            parts.append(
                f"default of {name} {earlier.default or 'none'} -> {parameter.default or 'none'}"
            )
    return "; ".join(parts)


def _shown(section: str, text: str) -> str:
    if section != "options":
        return text
    option = Option.of(text)
    return f"default {option.default}" if option.default else ""
