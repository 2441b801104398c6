"""Which releases have everything that a project uses, and what the others lack."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial

from ...util.validation import did_you_mean, format_value
from ...util.versions import specifiers_of
from ..api_history.lookup import Missing, Unknown
from ..api_history.store import MOVES, History, definitions_at
from .check import UseChecker
from .use import KINDS, Declared, Project, Use

_USE_INSTEAD = re.compile(
    r"(?i)\b(?:use|using|by|with|to|renamed to)\s+(?:the\s+)?[`'\"]?(--[\w.-]+|VLLM_\w+|[a-zA-Z_][\w.]*)[`'\"]?"
)
_ENGINE = ("LLM", "EngineArgs", "AsyncEngineArgs")


@dataclass(frozen=True)
class MissingUse:
    """A use that a release does not have.

    ``instead``: what it has in its place, where that is known.
    """

    use: Use
    text: str
    instead: str = ""

    @property
    def breaks(self) -> bool:
        """Whether something fails. A variable that vLLM does not read is only ignored."""
        return self.use.kind != "environment"

    def __str__(self) -> str:
        return f"{self.use.place}: {self.text}{f' (now {self.instead})' if self.instead else ''}"


@dataclass(frozen=True)
class Deprecation:
    """A use of which the newest release says that it will be removed."""

    use: Use
    message: str

    def __str__(self) -> str:
        return f"{self.use.place}: {self.use.name}: {self.message}"


@dataclass(frozen=True)
class UsesAnswer:
    """``problems``: what each release lacks, by release, oldest first; empty for those that have
    everything.

    ``unknown``: uses that no release is known to have, which do not count. ``broken``: releases in
    a declared range in which something fails.
    """

    project: Project
    problems: dict[str, tuple[MissingUse, ...]]
    unknown: tuple[Use, ...]
    deprecated: tuple[Deprecation, ...]
    broken: dict[Declared, tuple[str, ...]]

    @property
    def complete(self) -> tuple[str, ...]:
        """Releases that have everything."""
        return tuple(release for release, problems in self.problems.items() if not problems)

    @property
    def newest(self) -> str:
        return list(self.problems)[-1]


def answer(project: Project, history: History, ignore: Collection[str] = ()) -> UsesAnswer:
    """Return what every release of the history lacks of what the project uses. Uses named in
    ``ignore`` do not count.

    A name in ``ignore`` that the project does not use becomes a note.
    """
    checker = UseChecker(history)
    project = replace(project, notes=(*project.notes, *_needless(project, ignore)))
    known: list[Use] = []
    unknown: list[Use] = []
    for use in project.uses:
        statuses = checker.statuses(use)
        if not _names(use).isdisjoint(ignore):
            continue
        if any(status.sure and not status.missing for status in statuses):
            known.append(use)
        elif not use.guarded and any(status.missing for status in statuses):
            unknown.append(use)
    problems = _problems(checker, known)
    broken = {declared: _broken(declared, problems) for declared in project.declared}
    return UsesAnswer(
        project,
        problems,
        tuple({use.name: use for use in reversed(unknown)}.values()),
        tuple(deprecations(checker, known)),
        {declared: releases for declared, releases in broken.items() if releases},
    )


def _names(use: Use) -> set[str]:
    """Return the names by which a use can be ignored."""
    return {use.name, use.targets[0], use.detail} - {""}


def _needless(project: Project, ignore: Iterable[str]) -> Iterator[str]:
    used: set[str] = set().union(*map(_names, project.uses))
    for name in dict.fromkeys(ignore):
        if name not in used:
            yield f"--ignore {format_value(name)}: the project uses nothing of this name.{did_you_mean(name, sorted(used))}"


def _problems(checker: UseChecker, uses: Iterable[Use]) -> dict[str, tuple[MissingUse, ...]]:
    """Return what each release lacks: the same thing once for each file."""
    problems: list[dict[tuple[str, str], MissingUse]] = [{} for _ in checker.history.releases]
    advice = cache(partial(instead, checker))
    for use in sorted(uses, key=lambda use: (KINDS.index(use.kind), use.place.order)):
        for number in checker.broken_in(use):
            text = checker.statuses(use)[number].missing
            if (key := (use.place.file, text)) not in problems[number]:
                problems[number][key] = MissingUse(use, text, advice(use.bare, number))
    return {
        release: tuple(missing.values())
        for release, missing in zip(checker.history.releases, problems, strict=True)
    }


def _broken(declared: Declared, problems: dict[str, tuple[MissingUse, ...]]) -> tuple[str, ...]:
    """Return the releases of a declared range in which something fails; a local range is about the
    uses in its file."""
    return tuple(
        release
        for release in in_range(declared, problems)
        if any(
            problem.breaks and (not declared.local or problem.use.place.file == declared.place.file)
            for problem in problems[release]
        )
    )


def in_range(declared: Declared, releases: Iterable[str]) -> tuple[str, ...]:
    """Return the releases in a declared range."""
    specifiers = specifiers_of(declared.specifier)
    return () if specifiers is None else tuple(specifiers.filter(releases))


def instead(checker: UseChecker, use: Use, release: int) -> str:
    """Return what the release has in place of a use that it lacks; empty if that is not known."""
    history = checker.history
    moved = checker.statuses(use)[release].moved
    if place := history.entry(MOVES, moved, release):
        return place.replace(":", ".")
    exists: Callable[[str], bool]
    if use.kind in ("option", "environment"):
        name, exists = use.targets[0], partial(checker.has, use.kind, release=release)
    elif use.kind == "keyword":
        name, exists = use.detail, checker.keywords(use, release).__contains__
    else:
        return ""
    return next(_advised(history, name, exists), "")


def _advised(history: History, name: str, exists: Callable[[str], bool]) -> Iterator[str]:
    """Yield the names that messages about a deprecated one advise to use instead, and that exist."""
    for message in history.table("deprecations"):
        if mentions(message, name):
            for match in _USE_INSTEAD.finditer(message, message.index(name) + len(name)):
                advised = match[1].rstrip(".")
                if not advised.startswith("-"):
                    advised = advised.rpartition(".")[2]
                if advised != name and exists(advised.partition(".")[0]):
                    yield advised


def deprecations(checker: UseChecker, uses: Iterable[Use]) -> Iterable[Deprecation]:
    """Return the uses of which the sources of the newest release say that they will be removed."""
    last = len(checker.history.releases) - 1
    messages = definitions_at(checker.history.table("deprecations"), last)
    reported: dict[tuple[str, str], Deprecation] = {}
    for use in uses if messages else ():
        if checker.statuses(use)[last].missing or (use.live is not None and last not in use.live):
            continue
        owners = _owners(checker, use, last)
        for message, owner in messages.items():
            if _concerns(use, owners, message, owner):
                reported.setdefault((use.name, message), Deprecation(use, message))
    return reported.values()


def _concerns(use: Use, owners: set[str], message: str, owner: str) -> bool:
    name = use.targets[0]
    match use.kind:
        case "name":
            return owner in owners and message.startswith("deprecated: ")
        case "keyword":
            is_engine = name.rpartition(".")[2] in _ENGINE
            of_field = is_engine and _is_field(owner, use.detail)
            return of_field or (owner in owners and mentions(message, use.detail))
        case "option" if _is_field(owner, name.removeprefix("--").replace("-", "_")):
            return True
        case "option" | "environment":
            advised = (match[1] for match in _USE_INSTEAD.finditer(message))
            is_replacement = any(other.startswith(name) for other in advised)
            return mentions(message, name) and not is_replacement
    return False


def _is_field(owner: str, name: str) -> bool:
    """Return whether a deprecation is noted at a field of vLLM's configuration."""
    return owner.startswith("vllm.config") and owner.endswith(f".{name}")


def _owners(checker: UseChecker, use: Use, release: int) -> set[str]:
    """Return the keys under which the sources may note a deprecation of what is used."""
    if use.kind not in ("name", "keyword"):
        return set()
    try:
        symbol = checker.lookup(release).find(use.targets[0])
    except (Missing, Unknown):
        return set()
    return {f"{symbol.module}:{symbol.name}", f"{symbol.module}:{symbol.name}.__init__"}


def mentions(message: str, name: str) -> bool:
    """Return whether a message has the name as a word of its own."""
    return (
        name in message and re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", message) is not None
    )
