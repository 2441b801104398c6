"""Where a symbol went that a release no longer has: to another module, or to another name in its
module."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Mapping

from .definitions import bases_of, is_class, is_function
from .snapshot import Symbols

SIMILAR = 0.5
"""Share of common members from which a class counts as the renamed form of another one."""
MIN_MEMBERS = 3


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
                if definition.startswith(
                    "="
                ):  # a name that __getattr__ made from one of the package's modules
                    new = [candidate for candidate in new if candidate.startswith(f"{module}.")]
                target = _place(module, name, new, before) or _renamed(module, name, before, after)
                if target:
                    new_places[f"{module}:{name}"] = target
    return new_places


def _place(module: str, name: str, modules: list[str], before: Symbols) -> str:
    """Return the module that has the name now: the only one, or the most similar of those that did
    not have it."""
    new = [candidate for candidate in modules if name not in before.get(candidate, {})]
    origin = before[module][name].removeprefix("< ").partition(":")[0]
    if origin in modules:
        return f"{origin}:{name}"
    choice = new or (modules if len(modules) == 1 else [])
    if not choice:
        return ""
    return f"{max(choice, key=lambda candidate: _common(candidate, module))}:{name}"


def _renamed(module: str, name: str, before: Symbols, after: Symbols) -> str:
    """Return the class of the same module that takes the place of the one that is gone: its base,
    or one with most of its members."""
    if not is_class(before[module][name]):
        return ""
    classes = [
        other
        for other, text in after.get(module, {}).items()
        if is_class(text) and "." not in other
    ]
    bases = bases_of(before[module][name])
    if (
        len(bases) == 1 and bases[0] in classes and _shares_word(name, bases[0])
    ):  # the old name was a subclass
        return f"{module}:{bases[0]}"
    own = _members(before[module], name)
    if len(own) < MIN_MEMBERS:
        return ""
    scores = {
        other: _similarity(own, _members(after[module], other))
        for other in classes
        if other not in before[module]
    }
    scores |= {
        other: _similarity(own, _members(after[module], other))
        for other in classes
        if _shares_word(name, other)
    }
    best = max(scores, key=lambda other: scores[other], default="")
    return f"{module}:{best}" if best and scores[best] >= SIMILAR else ""


def _members(symbols: Mapping[str, str], name: str) -> set[str]:
    prefix = f"{name}."
    return {symbol.removeprefix(prefix) for symbol in symbols if symbol.startswith(prefix)}


def _similarity(one: set[str], other: set[str]) -> float:
    return len(one & other) / len(one | other) if one | other else 0.0


def _shares_word(one: str, other: str) -> bool:
    """Return whether two names end with the same letters, such as GuidedDecodingParams and
    StructuredOutputsParams."""
    return _common(one[::-1], other[::-1]) >= 5


def _common(one: str, other: str) -> int:
    """Return the number of characters that two names begin with alike."""
    return sum(
        1
        for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    )
