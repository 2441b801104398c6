"""Uses of vLLM in a project, as values."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cache

from ..api_history.definitions import Signature

KINDS = (
    "version",
    "name",
    "keyword",
    "call",
    "override",
    "option",
    "choice",
    "parser",
    "environment",
    "route",
    "metric",
)

HEADLINE = frozenset(
    ("version", "name", "keyword", "call", "override", "option", "choice", "parser")
)
"""Kinds without which the project fails to load, or to start the server. What a route or a metric
is needed for, its name does not say; a variable that a release does not read is ignored."""
CODE, TESTS, EXAMPLES, OTHER_IMAGE = PARTS = (
    "code",
    "tests",
    "examples",
    "manifests with another image",
)
"""Parts of a project that are answered separately."""
_TESTS = re.compile(
    r"(?i)(?:^|/)(?:[\w.-]*[_-])?tests?(?:[_-][\w.-]*)?/|(?:^|/)(?:test_[^/]*|[^/]*_test|conftest)\.py$"
)
_EXAMPLES = re.compile(
    r"(?i)(?:^|/)(?:examples?|demos?|samples?|tutorials?|cookbooks?|benchmarks?|docs?)/|\.(?:md|mdx|markdown)$"
)


@dataclass(frozen=True)
class Place:
    """File relative to the project, with a line.

    ``cell`` is the number of a notebook's cell, in which the line is counted.
    """

    file: str
    line: int
    cell: int = 0

    @property
    def order(self) -> tuple[str, int, int]:
        """Sorts places as a reader meets them."""
        return self.file, self.cell, self.line

    def __str__(self) -> str:
        return f"{self.file}:{f'cell {self.cell}:' if self.cell else ''}{self.line}"


@dataclass(frozen=True)
class UsedCall:
    """Arguments of a call: how many by position, which by keyword, and whether ``*`` or ``**``
    passes more."""

    positional: int
    keywords: tuple[str, ...]
    more_positional: bool = False
    more_keywords: bool = False


@dataclass(frozen=True)
class Use:
    """One thing of vLLM that a project uses.

    ``targets``: paths of which the first that exists in a release is meant
    (``api_history.lookup``); for other kinds the name, and for a metric those that stand for it.
    ``detail``: the keyword, the method, or the value of an option.
    ``override``: the parameters of a method that overrides one of vLLM; ``siblings``: the other
    methods of its class.
    ``roots``: what an attribute is reached from; where none of them exists, another use is the one
    that fails.
    ``live``: numbers of the releases for which the code asks before it gets there; None for all.
    ``instead_of``: this use only matters where one of those does not exist (the handler of an
    ``except ImportError``).
    ``guarded``: the project handles it if this does not exist; ``falls_back``: by going on without
    it, at most with a message. ``perhaps``: what around it may handle that, but is not understood.
    ``other_image``: it stands in the manifest of an image that is not vLLM's own.
    """

    kind: str
    targets: tuple[str, ...]
    place: Place
    detail: str = ""
    call: UsedCall | None = None
    override: Signature | None = None
    siblings: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    live: frozenset[int] | None = None
    instead_of: tuple[Use, ...] = ()
    guarded: bool = False
    falls_back: bool = False
    perhaps: str = ""
    other_image: bool = False

    @property
    def part(self) -> str:
        """The part of the project that it belongs to."""
        return OTHER_IMAGE if self.other_image else part_of(self.place.file)

    @property
    def key(self) -> Hashable:
        """Equal for uses of the same thing, wherever they are."""
        return self.kind, self.targets, self.detail, self.call, self.override, self.roots

    @property
    def bare(self) -> Use:
        """What is used, without where and under which conditions."""
        place = Place("", 0)
        return replace(
            self,
            place=place,
            live=None,
            instead_of=(),
            guarded=False,
            falls_back=False,
            perhaps="",
            other_image=False,
        )

    @property
    def name(self) -> str:
        """What is used, for people."""
        target = self.targets[0]
        shapes = {
            "keyword": f"{target}({self.detail}=...)",
            "call": f"{target}(...)",
            "override": f"{target}.{self.detail}",
            "choice": f"{target} {self.detail}",
            "parser": f"{target} {self.detail}",
        }
        return shapes.get(self.kind, target)


@cache
def part_of(file: str) -> str:
    """Return the part of a project that a file belongs to."""
    if _TESTS.search(file):
        return TESTS
    return EXAMPLES if _EXAMPLES.search(file) else CODE


@dataclass(frozen=True)
class Declared:
    """A range of releases that the project declares.

    ``local``: it holds only for the uses in the same file.
    """

    specifier: str
    place: Place
    local: bool = False


@dataclass(frozen=True)
class Command:
    """A command line that starts the server: its place, and the options with their values, as
    words; empty without a value."""

    place: Place
    options: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Project:
    """What was read: uses, declared ranges, and how many files. ``notes``: files that were left
    out, and why.

    ``commands``: command lines of the server; their options are among the uses, too.
    """

    uses: tuple[Use, ...]
    declared: tuple[Declared, ...]
    files: int
    notes: tuple[str, ...] = ()
    commands: tuple[Command, ...] = ()
