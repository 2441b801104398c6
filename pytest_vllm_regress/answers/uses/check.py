"""Whether a release has what a project uses."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from ..api_history.definitions import Option, Signature, is_class, is_function, signature_of
from ..api_history.lookup import Lookup, Lost, Missing, Symbol, Unknown
from ..api_history.store import History, intervals
from .strings import PARSER_OPTIONS, metric_spellings
from .use import Use


@dataclass(frozen=True)
class Status:
    """``missing``: what the release lacks, empty if it has everything; ``sure``: whether the
    sources say so.

    ``moved``: the key of the missing symbol in the table of moves.
    """

    missing: str = ""
    sure: bool = True
    moved: str = ""


THERE, UNSURE = Status(), Status(sure=False)


class UseChecker:
    """Checks uses against the releases of a history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self._lookups = [Lookup(history, number) for number in range(len(history.releases))]
        self._cache: dict[Hashable, tuple[Status, ...]] = {}
        self._lacking: dict[Hashable, tuple[int, ...]] = {}

    def lookup(self, release: int) -> Lookup:
        return self._lookups[release]

    def statuses(self, use: Use) -> tuple[Status, ...]:
        """Return for each release whether it has what is used, whatever the code asks before."""
        key = use.key
        if key not in self._cache:
            statuses = [_status(use, lookup) for lookup in self._lookups]
            keywords = use.call.keywords if use.call and "()" in use.targets[0] else ()
            if not all(map(partial(self._takes, use), keywords)):
                statuses = [UNSURE] * len(statuses)  # another object has the name, too
            if use.kind == "override":
                # Before the first release with the method it is one of the project's own.
                first = statuses.index(THERE) if THERE in statuses else len(statuses)
                statuses[:first] = [UNSURE] * first
                last = first
                for number in range(first, len(statuses)):
                    if not statuses[number].missing:
                        last = number
                    elif self._has_successor(use, last, number):
                        statuses[number] = UNSURE
                for number in self._renaming(use.detail):
                    statuses[number] = UNSURE  # it calls the method by its former name, too
            self._cache[key] = tuple(statuses)
        return self._cache[key]

    def _takes(self, call: Use, keyword: str) -> bool:
        """Return whether the call may accept the keyword in at least one release."""
        statuses = self.statuses(Use("keyword", call.targets, call.place, keyword))
        return THERE in statuses or not any(status.missing for status in statuses)

    def _renaming(self, method: str) -> Iterator[int]:
        """Yield the releases that ask projects to rename a method."""
        for message, timeline in self.history.table("deprecations").items():
            if f"`{method}`" in message and "rename" in message.partition(method)[2]:
                for start, end, _ in intervals(timeline, len(self.history.releases)):
                    yield from range(start, end)

    def _has_successor(self, use: Use, before: int, after: int) -> bool:
        """Return whether the class of an override, which a later release does not call, overrides
        what that calls instead: a method that the earlier release does not have."""
        owner = use.targets[0]
        exists = [
            {name for name in use.siblings if _has_member(self._lookups[number], owner, name)}
            for number in (before, after)
        ]
        return use.detail not in exists[1] and bool(exists[1] - exists[0])

    def has(self, kind: str, name: str, release: int) -> bool:
        """Return whether the release has an option or an environment variable."""
        return self._lookups[release].table(_TABLES[kind][0], name) is not None

    def keywords(self, use: Use, release: int) -> frozenset[str]:
        """Return the keywords that the release takes in a call."""
        try:
            return frozenset(_callable(use, self._lookups[release])[1].names())
        except Unknown:
            return frozenset()

    def broken_in(self, use: Use) -> list[int]:
        """Return the releases in which the code gets to a use that does not exist there, and does
        not handle that, as far as the code around it is understood."""
        if use.guarded:
            return []
        key = use.key
        if key not in self._lacking:
            statuses = enumerate(self.statuses(use))
            self._lacking[key] = tuple(number for number, status in statuses if status.missing)
        first_choices = [self.statuses(other) for other in use.instead_of]
        return [
            number
            for number in self._lacking[key]
            if (use.live is None or number in use.live)
            and (not first_choices or any(choice[number].missing for choice in first_choices))
        ]


def _has_member(lookup: Lookup, owner: str, name: str) -> bool:
    try:
        lookup.member(lookup.find(owner), name)
    except (Missing, Unknown):
        return False
    return True


def _status(use: Use, lookup: Lookup) -> Status:
    try:
        return _CHECKS.get(use.kind, _listed)(use, lookup)
    except Unknown:
        return UNSURE


def _name(use: Use, lookup: Lookup) -> Status:
    if use.roots:
        _first(use.roots, lookup)
    lacks = []
    for target in use.targets:
        try:
            lookup.find(target)
            return THERE
        except (Missing, Lost) as missing:
            lacks.append(_missing(target, missing))
    return lacks[0]


def _missing(target: str, missing: Missing | Lost) -> Status:
    owner, name = missing.owner, missing.name
    if owner is None:
        return Status(f"the package {name} does not exist")
    if is_class(owner.definition):
        return Status(f"the class {owner.path} has no {name}")
    module = f"{owner.module}.{name}"
    if target.startswith(f"{module}."):
        # Parts in lower case before the last are modules: the key in the table of moves.
        *inner, last = target.removeprefix(f"{module}.").removesuffix("()").split(".")
        moved = f"{'.'.join([module, *inner])}:{last}"
        return Status(f"the module {module} does not exist", moved=moved)
    return Status(f"the module {owner.path} has no {name}", moved=f"{owner.module}:{name}")


def _first(paths: tuple[str, ...], lookup: Lookup) -> Symbol:
    """Return what the first path means that exists. Raises ``Unknown`` if that cannot be said."""
    for path in paths:
        with suppress(Missing):
            return lookup.find(path)
    raise Unknown


def _callable(use: Use, lookup: Lookup) -> tuple[Symbol, Signature]:
    """Return what is called. Raises ``Unknown``."""
    symbol = _first(use.targets, lookup)
    try:
        return symbol, lookup.signature(symbol)
    except Missing:
        raise Unknown from None


def _keyword(use: Use, lookup: Lookup) -> Status:
    symbol, signature = _callable(use, lookup)
    if use.detail in signature.names():
        return THERE
    return UNSURE if signature.has("kwargs") else Status(f"{symbol.path} takes no {use.detail}")


def _call(use: Use, lookup: Lookup) -> Status:
    (symbol, signature), call = _callable(use, lookup), use.call
    if call is None:
        return UNSURE
    positional = signature.positional()
    if call.positional > len(positional) and not signature.has("args"):
        count = f"{len(positional)} positional arguments, not {call.positional}"
        return Status(f"{symbol.path} takes {count}")
    given = {*positional[: call.positional], *call.keywords}
    lacking = [p.name for p in signature.parameters if p.required and p.name not in given]
    if lacking and not (call.more_keywords or call.more_positional):
        return Status(f"{symbol.path} requires {', '.join(lacking)}")
    return THERE


def _override(use: Use, lookup: Lookup) -> Status:
    own, owner = use.override, _first(use.targets, lookup)
    if own is None:
        return UNSURE
    try:
        method = lookup.member(owner, use.detail)
    except (Missing, Unknown) as error:
        if isinstance(error, Unknown) and not lookup.has_lost(owner, use.detail):
            raise
        return Status(f"the class {owner.path} has no {use.detail}: the override is never called")
    signature = signature_of(method.definition) if is_function(method.definition) else None
    by_vllm = owner.module.startswith("vllm.platforms.")
    of_class = "@classmethod" in method.definition and not by_vllm
    if signature is None or "@overload" in method.definition or of_class:
        return UNSURE  # a class method is called on a class that the caller names
    passed = signature.without_first()
    lacking = [p.name for p in own.parameters if p.required and p.name not in passed.names()]
    is_short = len(passed.positional()) < sum(p.required for p in own.parameters)
    if by_vllm and lacking and is_short and not (passed.has("args") or passed.has("kwargs")):
        names = ", ".join(lacking)
        return Status(f"{method.path} is called without {names}, which the override requires")
    too_many = len(passed.positional()) > len(own.positional()) and not own.has("args")
    unknown = [p for p in passed.names().values() if p.name not in own.names()]
    # Who calls any subclass names an optional parameter only for those that have it.
    is_named = any(p.kind == "keyword" and p.required for p in unknown)
    if own.has("kwargs") or not (is_named or (too_many and unknown)):
        return THERE
    names = ", ".join(parameter.name for parameter in unknown)
    return Status(f"{method.path} is called with {names}, which the override does not take")


def _choice(use: Use, lookup: Lookup) -> Status:
    text = lookup.table("options", use.targets[0])
    choices = Option.of(text).choices if text is not None else ()
    if choices and use.detail not in choices:
        return Status(f"{use.targets[0]} does not allow {use.detail}")
    return THERE if choices else UNSURE


def _parser(use: Use, lookup: Lookup) -> Status:
    kind = PARSER_OPTIONS[use.targets[0]]
    exists = lookup.table("parsers", f"{kind}:{use.detail}") is not None
    return THERE if exists else Status(f"there is no {kind} parser {use.detail}")


def _listed(use: Use, lookup: Lookup) -> Status:
    """Check what a table of the history lists: an option, variable, route or metric."""
    table, lacks = _TABLES[use.kind]
    exists = any(lookup.table(table, name) is not None for name in spellings(use))
    return THERE if exists else Status(f"{lacks} {use.targets[0]}")


def spellings(use: Use) -> set[str]:
    """Return the names that a release may have for a use, of which one is enough."""
    if use.kind != "metric":
        return {use.targets[0]}
    return set().union(*map(metric_spellings, use.targets))


def _version(use: Use, lookup: Lookup) -> Status:
    return Status("the project raises an exception: it does not support this release")


_CHECKS: Mapping[str, Callable[[Use, Lookup], Status]] = {
    "version": _version,
    "name": _name,
    "keyword": _keyword,
    "call": _call,
    "override": _override,
    "choice": _choice,
    "parser": _parser,
}
_TABLES = {
    "option": ("options", "vllm serve has no"),
    "environment": ("environment", "vLLM does not read"),
    "route": ("routes", "there is no route"),
    "metric": ("metrics", "there is no metric"),
}
"""By the kind of a use: the table of the history, and what is said of a name that is not in it."""
