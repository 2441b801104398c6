"""Whether a deployment starts: does the release have the options, parsers and choices that the file
names, and what is different in another release."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from packaging.version import Version

from ..api_history.option_names import OptionNames
from ..api_history.store import History, history
from ..deployments.configuration import Deployment
from ..deployments.findings import UNSET, Mention, ServerCommand, Word
from ..uses.answer import instead
from ..uses.check import UseChecker
from ..uses.strings import StringReader
from ..uses.use import Use
from .features import release_number

_DECIDES = ("option", "choice", "parser")
_MODEL_TYPES = "vllm.model_executor.models."
MAX_MODEL = 200


@dataclass(frozen=True)
class StartProblem:
    """Something in a deployment that the release does not have. ``line``: of the file; 0 if it is
    not known. ``certain``: the server ends at once because of it; otherwise probably."""

    source: str
    line: int
    name: str
    text: str
    certain: bool = True

    def __str__(self) -> str:
        return self.text if self.certain else f"probably: {self.text}"


@dataclass(frozen=True)
class StartCheck:
    """The answer to "will it start?" for all servers of a file.

    ``checked``: how many options, parsers and choices were looked up.
    ``complete``: the file tells all options.
    """

    release: str
    problems: tuple[StartProblem, ...]
    checked: int
    complete: bool

    @property
    def refused(self) -> bool:
        return any(problem.certain for problem in self.problems)

    def __str__(self) -> str:
        if self.problems:
            some = list(dict.fromkeys(map(str, self.problems)))
            more = f"; and {len(some) - 5} more" if len(some) > 5 else ""
            start = "no, it ends at once" if self.refused else "perhaps not"
            return f"{start}: {'; '.join(some[:5])}{more}"
        named = (
            "the only option" if self.checked == 1 else f"all {self.checked} options and parsers"
        )
        known = f"vllm {self.release} has {named} that the file names"
        if not self.checked:
            known = "the file names no options"
        return f"nothing is against it: {known}{'' if self.complete else ', but more come from elsewhere'}"


def check_start(deployments: tuple[Deployment, ...], release: str) -> StartCheck | None:
    """Return whether the deployments start with a release; None if its options are not known."""
    version = Version(Version(release).public)
    api = history()
    number = release_number(api, version)
    if number is None or version < Version(api.releases[0]):
        return None
    checked: dict[tuple[str, str], None] = {}
    problems: dict[StartProblem, None] = {}
    for place in deployments:
        for use in uses_of(place):
            checked[use.kind, use.name] = None
            if (problem := _problem(use, place, number)) is not None:
                problems[problem] = None
        if (model := _unknown_model(place, number)) is not None:
            problems[model] = None
    complete = all(place.names_all for place in deployments)
    return StartCheck(str(version), tuple(problems), len(checked), complete)


@dataclass(frozen=True)
class ChangedUse:
    """What a deployment uses, the older release has and the newer one does not. ``instead``: what
    the newer one has in its place, where that is known."""

    source: str
    line: int
    name: str
    text: str
    instead: str = ""
    breaks: bool = True

    def __str__(self) -> str:
        end = f" (now {self.instead})" if self.instead else ""
        ignored = "" if self.breaks else "; it is ignored"
        return f"{self.source}:{self.line}: {self.text}{end}{ignored}"


def changed_uses(
    deployments: tuple[Deployment, ...], before: str, after: str
) -> tuple[ChangedUse, ...]:
    """Return what of the deployments' uses the newer release no longer has."""
    api = history()
    old, new = (release_number(api, Version(Version(text).public)) for text in (before, after))
    if old is None or new is None:
        return ()
    changed: dict[tuple[str, str, int], ChangedUse] = {}
    for place in deployments:
        file = place.source.partition(" (")[0]
        mentioned = list(_mentioned(place))
        # A variable that the file names has its own line there.
        uses = (u for u in uses_of(place) if u.kind != "environment" or not mentioned)
        for use in (*uses, *mentioned):
            statuses = checker().statuses(use)
            if statuses[new].missing and not statuses[old].missing:
                text, line = statuses[new].missing, use.place.line
                advice = instead(checker(), use.bare, new)
                breaks = use.kind != "environment"
                change = ChangedUse(place.source, line, use.name, text, advice, breaks)
                changed.setdefault((file, text, line), change)
    return tuple(changed.values())


def _mentioned(place: Deployment) -> Iterator[Use]:
    """Yield the routes, metrics and variables that the file of a deployment names: in probes,
    scaling rules, and variables of other containers."""
    reader = StringReader(history())
    for mention in place.mentions:
        yield from reader.read(mention, place.source)


def uses_of(place: Deployment) -> Iterator[Use]:
    """Yield the options, parsers, choices and variables that a deployment uses."""
    server = place.command
    if server is None:
        return
    reader = StringReader(history())
    settings = [word for name, value in place.options.items() for word in _as_words(name, value)]
    words = tuple(word for word in server.words if not _is_nested(word))
    given = replace(server, words=words, sometimes=())
    yield from reader.read(given, place.source)
    if server.settings:
        yield from reader.read(
            ServerCommand(tuple(settings), server.line, is_certain=False), place.source
        )
    for name in place.variables:
        yield from reader.read(Mention("environment", name, server.line), place.source)


def _is_nested(word: Word) -> bool:
    """Return whether a word is a setting within an option, such as ``-O.level``."""
    return word.startswith("-O")


def _as_words(name: str, value: object) -> list[Word]:
    option = f"--{name.replace('_', '-')}"
    if name == "model" or value is None or value is False or option not in _names().options:
        return []
    return [Word(option) if value is True else Word(f"{option}={value}")]


@cache
def _names() -> OptionNames:
    return OptionNames.of(history())


@cache
def checker() -> UseChecker:
    return UseChecker(history())


def _problem(use: Use, place: Deployment, number: int) -> StartProblem | None:
    if use.kind not in _DECIDES or use.detail == UNSET:
        return None
    status = checker().statuses(use)[number]
    if not status.missing:
        return None
    when = since(use, number, history())
    advice = instead(checker(), use.bare, number)
    end = f" (now {advice})" if advice else when
    return StartProblem(place.source, use.place.line, use.name, f"{status.missing}{end}")


def since(use: Use, number: int, api: History) -> str:
    """Return since when a release lacks something, or which one has it first."""
    has = [not status.missing for status in checker().statuses(use)]
    if not any(has):
        return ", nor has any known release"
    last = max((n for n in range(number) if has[n]), default=None)
    if last is not None:
        return f" since {api.releases[last + 1]}; leave it out"
    first = has.index(True)
    return f" before {api.releases[first]}" if first > number else ""


def _unknown_model(place: Deployment, number: int) -> StartProblem | None:
    """Return that the release has no code for a model's type, if the model's name begins with one
    that only later releases have."""
    model = place.options.get("model")
    if not isinstance(model, str) or len(model) > MAX_MODEL:
        return None
    name = model.rstrip("/").rpartition("/")[2].lower()
    types = {
        module.removeprefix(_MODEL_TYPES): module
        for module in history().table("modules")
        if module.startswith(_MODEL_TYPES)
    }
    found = [kind for kind in types if _begins(name, kind)]
    best = max(found, key=len, default=None)
    if best is None or history().entry("modules", types[best], number) is not None:
        return None
    timeline = history().table("modules")[types[best]]
    if timeline[0] <= number:  # it was moved or renamed
        return None
    text = f"there is no model type {best} before {history().releases[timeline[0]]}"
    return StartProblem(place.source, 0, best, text, certain=False)


def _begins(name: str, kind: str) -> bool:
    pattern = r"[-_. ]?".join(map(re.escape, re.findall(r"[a-z]+|\d", kind)))
    return bool(kind) and re.match(rf"{pattern}(?![a-z0-9])", name) is not None
