"""Whether a release has what a project uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ..api_history.definitions import Signature, is_class, is_function, signature_of
from ..api_history.lookup import Lookup, Missing, Symbol, Unknown
from ..api_history.service import Option
from ..api_history.store import History
from .strings import PARSER_OPTIONS
from .use import Place, Use

_NOWHERE = Place("", 0)


@dataclasses.dataclass(frozen=True)
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
        self._cache: dict[Use, tuple[Status, ...]] = {}
        self._checks: dict[str, Callable[[Use, Lookup], Status]] = {
            "name": _name,
            "keyword": _keyword,
            "call": _call,
            "override": _override,
            "option": _option,
            "choice": _choice,
            "parser": _parser,
            "environment": _environment,
            "route": _route,
            "metric": _metric,
        }

    def lookup(self, release: int) -> Lookup:
        return self._lookups[release]

    def statuses(self, use: Use) -> tuple[Status, ...]:
        """Return for each release whether it has what is used, whatever the code asks before."""
        key = dataclasses.replace(use, place=_NOWHERE, live=None, instead_of=(), guarded=False)
        if key not in self._cache:
            check = self._checks[use.kind]
            statuses = [check(key, lookup) for lookup in self._lookups]
            self._cache[key] = tuple(_since_first(statuses) if use.kind == "override" else statuses)
        return self._cache[key]

    def has(self, kind: str, name: str, release: int) -> bool:
        """Return whether the release has an option or an environment variable."""
        section = {"option": "options", "environment": "environment"}[kind]
        return self._lookups[release].table(section, name) is not None

    def keywords(self, use: Use, release: int) -> frozenset[str]:
        """Return the keywords that the release takes in a call."""
        callable = _signature(use, self._lookups[release])
        return frozenset(callable[1].names()) if callable is not None else frozenset()

    def broken_in(self, use: Use) -> list[int]:
        """Return the releases in which the code gets to a use that does not exist there, and does
        not handle that."""
        if use.guarded:
            return []
        first_choices = [self.statuses(other) for other in use.instead_of]
        return [
            number
            for number, status in enumerate(self.statuses(use))
            if status.missing
            and (use.live is None or number in use.live)
            and (not first_choices or any(statuses[number].missing for statuses in first_choices))
        ]


def _since_first(statuses: list[Status]) -> list[Status]:
    """Return the statuses of an override; before the first release with the method it is a method
    of the project's own."""
    first = next(
        (number for number, status in enumerate(statuses) if status == THERE), len(statuses)
    )
    return [UNSURE] * first + statuses[first:]


def _name(use: Use, lookup: Lookup) -> Status:
    if use.roots and _first(use.roots, lookup) is None:
        return UNSURE
    status = UNSURE
    for target in use.targets:
        try:
            lookup.find(target)
            return THERE
        except Unknown:
            return UNSURE
        except Missing as missing:
            if status is UNSURE:
                status = _missing(target, missing)
    return status


def _missing(target: str, missing: Missing) -> Status:
    owner, name = missing.owner, missing.name
    if owner is None:
        return Status(f"the package {name} does not exist")
    kind = "class" if is_class(owner.definition) else "module"
    moved = f"{owner.module}:{name}" if kind == "module" else ""
    module = f"{owner.module}.{name}"
    if kind == "module" and target.startswith(f"{module}."):
        rest = target.removeprefix(f"{module}.")
        return Status(f"the module {module} does not exist", moved=_split(module, rest))
    return Status(f"the {kind} {owner.path} has no {name}", moved=moved)


def _split(module: str, rest: str) -> str:
    """Return the key of ``module.rest`` in the table of moves; parts in lower case before the last
    are modules."""
    *inner, name = rest.removesuffix("()").split(".")
    return f"{'.'.join([module, *inner])}:{name}"


def _first(paths: tuple[str, ...], lookup: Lookup) -> Symbol | None:
    """Return what the first path means that exists. Raises ``Unknown`` if that cannot be said."""
    for path in paths:
        try:
            return lookup.find(path)
        except Unknown:
            return None
        except Missing:
            continue
    return None


def _signature(use: Use, lookup: Lookup) -> tuple[Symbol, Signature] | None:
    symbol = _first(use.targets, lookup)
    if symbol is None:
        return None
    try:
        return symbol, lookup.signature(symbol)
    except (Unknown, Missing):
        return None


def _keyword(use: Use, lookup: Lookup) -> Status:
    callable = _signature(use, lookup)
    if callable is None:
        return UNSURE
    symbol, signature = callable
    if use.detail in signature.names():
        return THERE
    return UNSURE if signature.has("kwargs") else Status(f"{symbol.path} takes no {use.detail}")


def _call(use: Use, lookup: Lookup) -> Status:
    callable = _signature(use, lookup)
    if callable is None or use.call is None:
        return UNSURE
    symbol, signature = callable
    call = use.call
    positional = [
        parameter
        for parameter in signature.parameters
        if parameter.kind in ("positional", "either")
    ]
    if call.positional > len(positional) and not signature.has("args"):
        return Status(
            f"{symbol.path} takes {len(positional)} positional arguments, not {call.positional}"
        )
    given = {parameter.name for parameter in positional[: call.positional]} | set(call.keywords)
    lacking = [
        parameter.name
        for parameter in signature.parameters
        if parameter.required and parameter.name not in given
    ]
    if lacking and not (call.more_keywords or call.more_positional):
        return Status(f"{symbol.path} requires {', '.join(lacking)}")
    return THERE


def _override(use: Use, lookup: Lookup) -> Status:
    own, owner = use.override, _first(use.targets, lookup)
    if own is None or owner is None:
        return UNSURE
    try:
        method = lookup.member(owner, use.detail)
    except Unknown:
        return UNSURE
    except Missing:
        return Status(f"the class {owner.path} has no {use.detail}: the override is never called")
    signature = signature_of(method.definition) if is_function(method.definition) else None
    if signature is None or "@overload" in method.definition or "@classmethod" in method.definition:
        return UNSURE  # a class method is called on a class that the caller names
    passed = signature.without_first().parameters
    count = sum(parameter.kind in ("positional", "either") for parameter in passed)
    unknown = [
        p
        for p in passed
        if p.kind in ("either", "keyword") and p.name not in own.names and not own.any_keyword
    ]
    too_many = count > own.positional and not own.any_positional
    if unknown and (too_many or any(parameter.kind == "keyword" for parameter in unknown)):
        names = ", ".join(parameter.name for parameter in unknown)
        return Status(f"{method.path} is called with {names}, which the override does not take")
    return THERE


def _option(use: Use, lookup: Lookup) -> Status:
    if _option_text(use.targets[0], lookup) is not None:
        return THERE
    return Status(f"vllm serve has no {use.targets[0]}")


def _option_text(name: str, lookup: Lookup) -> str | None:
    return lookup.table("options", name)


def _choice(use: Use, lookup: Lookup) -> Status:
    text = _option_text(use.targets[0], lookup)
    choices = Option.of(text).choices if text is not None else ()
    if not choices:
        return UNSURE
    return (
        THERE if use.detail in choices else Status(f"{use.targets[0]} does not allow {use.detail}")
    )


def _parser(use: Use, lookup: Lookup) -> Status:
    kind = PARSER_OPTIONS[use.targets[0]]
    if lookup.table("parsers", f"{kind}:{use.detail}") is not None:
        return THERE
    return Status(f"there is no {kind} parser {use.detail}")


def _environment(use: Use, lookup: Lookup) -> Status:
    name = use.targets[0]
    return (
        THERE
        if lookup.table("environment", name) is not None
        else Status(f"vLLM does not read {name}")
    )


def _route(use: Use, lookup: Lookup) -> Status:
    name = use.targets[0]
    return (
        THERE if lookup.table("routes", name) is not None else Status(f"there is no route {name}")
    )


def _metric(use: Use, lookup: Lookup) -> Status:
    """Check a metric.

    Prometheus' client adds ``_total`` to the name of a counter, whether the sources have it or not.
    """
    name = use.targets[0]
    stem = name.removesuffix("_total")
    exists = any(lookup.table("metrics", known) is not None for known in (stem, f"{stem}_total"))
    return THERE if exists else Status(f"there is no metric {name}")
