"""Where a symbol went that a release no longer has: to another module, or to another name in its
module."""

from __future__ import annotations

import collections

from pytest_vllm_regress.answers.api_history.definitions import bases_of, is_class, is_function

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
