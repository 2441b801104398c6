"""Which releases have everything that a project uses, and what the others lack."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial

from ...util.validation import did_you_mean, format_value
from ...util.versions import specifiers_of
from ..api_history.lookup import Missing, Unknown
from ..api_history.store import MOVES, History, definitions_at
from .check import Status, UseChecker
from .use import CODE, HEADLINE, KINDS, PARTS, Declared, Project, Use

_USE_INSTEAD = re.compile(
    r"(?i)\b(?:use|using|by|with|to|renamed to)\s+(?:the\s+)?[`'\"]?(--[\w.-]+|VLLM_\w+|[a-zA-Z_][\w.]*)[`'\"]?"
)
LEAVE_OUT = "was removed; leave it out"
MAX_MOVES = 8
_POLARITY = re.compile(r"(?:^|[-_])(?:(enable)|disable|no)(?=[-_])")
_NAME = re.compile(
    r"--[\w.-]+(?: (?!option|flag|arg|param|value|and |or |is |has )[\w.-]+(?= (?:is|has been|will be) ))?|VLLM_\w+"
)
"""A variable, or an option, with the value of which a message speaks."""
_REMOVED = re.compile(r"(?i)deprecat|will be removed|has been removed|no longer")
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

    @property
    def hint(self) -> str:
        """What to do about it; empty if that is not known."""
        return f"now {self.instead}" if self.instead not in ("", LEAVE_OUT) else self.instead

    def __str__(self) -> str:
        return f"{self.use.place}: {self.text}{f' ({self.hint})' if self.hint else ''}"


@dataclass(frozen=True)
class PerhapsHandled:
    """A use that some releases do not have, where the code around it may handle that."""

    use: Use
    text: str
    releases: tuple[str, ...]


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
    everything. ``fallbacks``: what the newest release lacks, and the project does without.

    ``unknown``: uses that no release is known to have, which do not count. ``broken``: releases in
    a declared range in which something fails. ``perhaps``: what releases lack, and the project may
    handle, which does not count either.
    """

    project: Project
    problems: dict[str, tuple[MissingUse, ...]]
    unknown: tuple[Use, ...]
    deprecated: tuple[Deprecation, ...]
    fallbacks: tuple[MissingUse, ...]
    broken: dict[Declared, tuple[str, ...]]
    perhaps: tuple[PerhapsHandled, ...] = ()

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The parts of the project that use vLLM; the headline is about the first."""
        used = {use.part for use in self.project.uses if use.kind in HEADLINE}
        return tuple(part for part in PARTS if part in used) or (CODE,)

    def complete_for(self, part: str) -> tuple[str, ...]:
        """Return the releases that have all imports, calls and options of a part of the project."""
        return tuple(
            release
            for release, problems in self.problems.items()
            if not any(p.use.part == part and p.use.kind in HEADLINE for p in problems)
        )

    @property
    def complete(self) -> tuple[str, ...]:
        """Releases that have all imports, calls and options, without tests and examples."""
        return self.complete_for(self.parts[0])

    def lacking(self, kinds: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Return the uses of some kinds that releases lack, by name, with these releases."""
        lacking: dict[str, dict[str, None]] = {}
        for release, problems in self.problems.items():
            for problem in problems:
                if problem.use.kind in kinds:
                    lacking.setdefault(problem.use.targets[0], {})[release] = None
        return {name: tuple(releases) for name, releases in lacking.items()}

    @property
    def is_partial(self) -> bool:
        """Whether the headline leaves out imports or keyword arguments that no release has."""
        return any(
            use.kind in ("name", "keyword") and use.part == self.parts[0] and "()" not in use.name
            for use in self.unknown
        )

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
    reach: dict[Hashable, Use] = {}
    is_known: dict[Hashable, bool] = {}
    for named in project.uses:
        if (first := named.key) not in reach:
            reach[first] = _reachable(checker, named)
        targets = reach[first].targets
        use = named if targets == named.targets else replace(named, targets=targets)
        if ignore and not _names(use).isdisjoint(ignore):
            continue
        statuses = checker.statuses(use)
        if (key := use.key) not in is_known:
            is_known[key] = _is_known(use, statuses)
        if is_known[key]:
            known.append(use)
        elif not use.guarded and _is_lacking(use, statuses):
            unknown.append(use)
    problems = _problems(checker, known)
    result = UsesAnswer(
        project,
        problems,
        tuple({use.name: use for use in reversed(unknown)}.values()),
        tuple(deprecations(checker, known)),
        tuple(_fallbacks(checker, known)),
        {},
        tuple(_perhaps(checker, known, problems)),
    )
    broken = {declared: _broken(declared, result) for declared in project.declared}
    return replace(result, broken={declared: r for declared, r in broken.items() if r})


def _is_known(use: Use, statuses: Sequence[Status]) -> bool:
    """Return whether a release that lacks something counts. What no release has may be added at run
    time, or by the project."""
    return use.kind == "version" or any(status.sure and not status.missing for status in statuses)


def _is_lacking(use: Use, statuses: Sequence[Status]) -> bool:
    """Return whether releases lack something that none has. Of a name in a module that must be
    known for all of them."""
    in_module = use.kind == "name" and "()" not in use.name
    lacks = any(status.missing for status in statuses)
    return lacks and (not in_module or all(status.sure for status in statuses))


def _reachable(checker: UseChecker, use: Use) -> Use:
    """Return a use, or that of the first attributes in its chain if no release has the whole: of
    ``engine.engine.tokenizer`` it may not know the class of the second."""
    if use.kind != "name" or not use.roots or _is_known(use, checker.statuses(use)):
        return use
    parts = use.targets[0].removeprefix(use.roots[0]).count(".")
    targets = use.targets
    for _ in range(parts - 1):
        targets = tuple(target.rpartition(".")[0] for target in targets)
        shorter = replace(use, targets=targets)
        if _is_known(shorter, checker.statuses(shorter)):
            return shorter
    return use


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
    for use in _sorted(use for use in uses if not use.perhaps):
        for number in checker.broken_in(use):
            text = checker.statuses(use)[number].missing
            if (key := (use.place.file, text)) not in problems[number]:
                problems[number][key] = MissingUse(use, text, advice(use.bare, number))
    return {
        release: tuple(missing.values())
        for release, missing in zip(checker.history.releases, problems, strict=True)
    }


def _sorted(uses: Iterable[Use]) -> list[Use]:
    return sorted(uses, key=lambda use: (KINDS.index(use.kind), use.place.order))


def _perhaps(
    checker: UseChecker, uses: Iterable[Use], problems: Mapping[str, Sequence[MissingUse]]
) -> Iterator[PerhapsHandled]:
    """Yield what releases lack where that may be handled: the same thing once for each file, and not
    where the file certainly needs it, too."""
    certain = [{(p.use.place.file, p.text) for p in found} for found in problems.values()]
    lacking: dict[tuple[str, str], tuple[Use, dict[str, None]]] = {}
    for use in _sorted(use for use in uses if use.perhaps):
        for number in checker.broken_in(use):
            key = use.place.file, checker.statuses(use)[number].missing
            if key not in certain[number]:
                lacking.setdefault(key, (use, {}))[1][checker.history.releases[number]] = None
    for (_, text), (use, releases) in lacking.items():
        yield PerhapsHandled(use, text, tuple(sorted(releases, key=list(problems).index)))


def _fallbacks(checker: UseChecker, uses: Iterable[Use]) -> Iterator[MissingUse]:
    last = len(checker.history.releases) - 1
    for use in uses:
        runs = use.falls_back and (use.live is None or last in use.live)
        if runs and (text := checker.statuses(use)[last].missing):
            yield MissingUse(use, text, instead(checker, use.bare, last))


def _broken(declared: Declared, answer: UsesAnswer) -> tuple[str, ...]:
    """Return the releases of a declared range in which something fails; a local range is about the
    uses in its file, others are about the project without its tests and examples."""
    return tuple(
        release
        for release in in_range(declared, answer.problems)
        if any(
            problem.breaks
            and (
                problem.use.place.file == declared.place.file
                if declared.local
                else problem.use.part == answer.parts[0]
            )
            for problem in answer.problems[release]
        )
    )


def in_range(declared: Declared, releases: Iterable[str]) -> tuple[str, ...]:
    """Return the releases in a declared range."""
    specifiers = specifiers_of(declared.specifier)
    return () if specifiers is None else tuple(specifiers.filter(releases))


def instead(checker: UseChecker, use: Use, release: int) -> str:
    """Return what the release has in place of a use that it lacks; empty if that is not known."""
    history = checker.history
    if place := _place(history, checker.statuses(use)[release].moved, release):
        path = place.replace(":", ".")
        return "" if _was_beside(checker, use, path, release) else path
    exists: Callable[[str], bool]
    if use.kind in ("option", "environment"):
        name, exists = use.targets[0], partial(checker.has, use.kind, release=release)
    elif use.kind == "keyword":
        name, exists = use.detail, checker.keywords(use, release).__contains__
    else:
        return ""
    advised = next(_advised(history, name, exists), "")
    return LEAVE_OUT if advised and _means_opposite(name, advised) else advised


def _was_beside(checker: UseChecker, use: Use, path: str, release: int) -> bool:
    """Return whether a path meant another object of the same name when what is used existed, too."""
    if use.targets[0].rpartition(".")[2] != path.rpartition(".")[2]:
        return False  # vLLM had the new name for a while before it removed the old one
    statuses = checker.statuses(use)[:release]
    before = [number for number, status in enumerate(statuses) if not status.missing]
    try:
        lookup = checker.lookup(before[-1] if before else release)
        return lookup.find(use.targets[0]).path != lookup.find(path).path
    except (Missing, Unknown):
        return False


def _place(history: History, moved: str, release: int) -> str:
    """Return where a symbol is in that release, which may have moved more than once; empty if that
    is not known."""
    for _ in range(MAX_MOVES):
        moved = history.entry(MOVES, moved, release) or ""
        module, _, name = moved.partition(":")
        if not moved or history.definition(module, name, release) is not None:
            return moved
    return ""


def _means_opposite(name: str, other: str) -> bool:
    """Return whether one name enables what the other disables."""
    one, two = _POLARITY.search(name), _POLARITY.search(other)
    return one is not None and two is not None and bool(one[1]) != bool(two[1])


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
            return name in _subjects(message)
        case "choice":
            return f"{name} {use.detail}" in _subjects(message)
    return False


def _subjects(message: str) -> list[str]:
    """Return the options and variables of which a message says that they will be removed: those in
    front of the words that say so. Later ones replace them, or explain."""
    removed = _REMOVED.search(message)
    return (
        [match[0].rstrip(".") for match in _NAME.finditer(message[: removed.start()])]
        if removed
        else []
    )


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
