"""Uses of vLLM in commands and names: of other files than Python, and in strings of Python source.

What a text says is read by ``deployments.reader``. Here it becomes uses, as far as any release
knows the name.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from ..api_history.definitions import Option
from ..api_history.option_names import OptionNames, closest
from ..api_history.source import text_of
from ..api_history.store import History
from ..deployments.reader import (
    DeploymentFinding,
    Mention,
    ServerCommand,
    Word,
    commands,
    names_in,
    servers,
    split,
)
from .use import Command, Place, Use

_DOTTED = re.compile(r"vllm(?:\.[A-Za-z_]\w*){2,8}")
_OPTION = re.compile(r"--[a-z][a-z0-9_-]{1,100}")
_SUFFIXES = ("_bucket", "_count", "_sum", "_total", "_created")
_GENERIC_ROUTES = frozenset(
    ("/health", "/metrics", "/ping", "/version", "/docs", "/static", "/load", "/ready", "/readyz")
)
PARSER_OPTIONS = {"--tool-call-parser": "tool", "--reasoning-parser": "reasoning"}
MAX_WORDS = 2000
MAX_STRING = 10_000
MAX_COMMANDS = 1000
MAX_UNKNOWN = 500
"""Names that no release has of which it is found out whether they resemble a known one."""
_PREFIX = "VLLM_"


@dataclasses.dataclass(frozen=True)
class KnownNames:
    """Names that any release has: strings of other meaning are no uses.

    ``choices``: options that allow only some values.
    """

    options: OptionNames
    environment: Collection[str]
    routes: Collection[str]
    metrics: Collection[str]
    choices: Collection[str]

    @classmethod
    def of(cls, history: History) -> KnownNames:
        options = history.table("options")
        choices = {
            name
            for name, timeline in options.items()
            if any(Option.of(text).choices for text in timeline[1::2] if isinstance(text, str))
        }
        environment, routes = history.table("environment"), history.table("routes")
        return cls(OptionNames.of(history), environment, routes, history.table("metrics"), choices)


class StringReader:
    """Finds the uses in strings of Python source and in the lines of other files."""

    def __init__(self, known: KnownNames) -> None:
        self._known = known
        self._variables = [
            name.removeprefix(_PREFIX) for name in known.environment if name.startswith(_PREFIX)
        ]
        self._resembling: dict[str, bool] = {}
        self.own_routes: set[str] = set()
        self.commands: dict[Command, None] = {}

    def define(self, decorator: ast.expr) -> None:
        """Note the route that a decorator, or a call such as ``add_api_route``, defines in the
        project's own server."""
        if (
            isinstance(decorator, ast.Call)
            and decorator.args
            and (route := text_of(decorator.args[0])).startswith("/")
        ):
            self.own_routes.add(route.rstrip("/"))

    def uses_in(self, node: ast.AST, place: Place) -> list[Use]:
        """Return the uses in one node of Python source: a string, or a list of words that starts
        the server."""
        if isinstance(node, (ast.List, ast.Tuple)):
            words = [Word(text_of(item), place.line) for item in node.elts]
            return list(self._servers(servers(words), place))
        text = text_of(node) if isinstance(node, (ast.Constant, ast.JoinedStr)) else ""
        if not text or len(text) > MAX_STRING:
            return []
        uses = [use for kind, name in names_in(text) for use in self._named(kind, name, place)]
        if _DOTTED.fullmatch(text):
            uses.append(Use("name", (text,), place))
        if "vllm" in text and " " in text.strip():  # a command may go on in the next line
            command = split(text.replace("\n", " "), place.line)
            for words in commands(command):
                uses += self._servers(servers(words), place, alone=False)
        return uses

    def read(self, finding: DeploymentFinding, file: str) -> Iterator[Use]:
        """Yield the uses in what was read of a file."""
        if isinstance(finding, Mention):
            yield from self._named(finding.kind, finding.name, Place(file, finding.line))
        elif isinstance(finding, ServerCommand):
            places = [Place(file, word.line) for word in finding.words]
            yield from self._options(
                finding, Place(file, finding.line), places, alone=finding.is_certain
            )

    def _servers(
        self, started: Iterable[ServerCommand], place: Place, *, alone: bool = True
    ) -> Iterator[Use]:
        for server in started:
            yield from self._options(server, place, [place] * len(server.words), alone=alone)

    def _named(self, kind: str, name: str, place: Place) -> Iterator[Use]:
        """Yield a use of a variable, metric or route, if there is one of this name."""
        if kind == "environment":
            if name in self._known.environment or self._resembles_variable(name):
                yield Use(kind, (name,), place)
        elif kind == "metric":
            if (metric := self._metric(name)) is not None:
                yield Use(kind, (metric,), place)
        elif (route := name.rstrip("/.")) in self._known.routes and route not in _GENERIC_ROUTES:
            yield Use(kind, (route,), place)

    def _options(
        self, server: ServerCommand, place: Place, places: Sequence[Place], *, alone: bool
    ) -> Iterator[Use]:
        """Yield the options of a server, each with its place. Notes the command, which is at
        ``place``.

        ``alone``: any option is certainly meant for the server, and may be shortened.
        """
        words = server.words
        given: list[tuple[str, str]] = []
        for number, word in enumerate(words[:MAX_WORDS]):
            if not word.startswith("--") or len(word) < 4:
                continue
            name, _, value = word.partition("=")
            head, dot, keys = name.partition(".")
            meaning = self._known.options.find(head) if alone else self._known.options.exact(head)
            if meaning is None:
                if _OPTION.fullmatch(head) and (alone or self._is_misspelt(head)):
                    yield Use("option", (head,), places[number])
                continue
            option = self._positive(meaning)
            yield Use("option", (option,), places[number])
            value = value or (words[number + 1] if number + 1 < len(words) else "")
            given.append(
                (f"{meaning}{dot}{keys}".replace("_", "-"), "" if value.startswith("--") else value)
            )
            if value and not value.startswith(("-", "$", "{")):
                if option in PARSER_OPTIONS:
                    yield Use("parser", (option,), places[number], detail=value)
                elif option in self._known.choices:
                    yield Use("choice", (option,), places[number], detail=value)
        if len(self.commands) < MAX_COMMANDS:
            self.commands[Command(place, tuple(given))] = None

    def _positive(self, option: str) -> str:
        return (
            option if option in self._known.options.options else f"--{option.removeprefix('--no-')}"
        )

    def _is_misspelt(self, option: str) -> bool:
        return self._resembles(option, self._known.options.is_misspelt)

    def _resembles_variable(self, name: str) -> bool:
        """Return whether a variable is probably a known one with an error.

        Projects have variables ``VLLM_...`` of their own.
        """
        return self._resembles(
            name, lambda name: bool(closest(name.removeprefix(_PREFIX), self._variables))
        )

    def _resembles(self, name: str, resembles: Callable[[str], bool]) -> bool:
        if name not in self._resembling and len(self._resembling) < MAX_UNKNOWN:
            self._resembling[name] = resembles(name)
        return self._resembling.get(name, False)

    def _metric(self, name: str) -> str | None:
        stems = [name, *(name.removesuffix(suffix) for suffix in _SUFFIXES), f"{name}_total"]
        return next((stem for stem in stems if stem in self._known.metrics), None)
