"""Uses of vLLM in strings: commands, environment variables, routes, metrics and dotted names."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Sequence

from ..api_history.option_names import OptionNames, closest
from ..api_history.source import text_of
from .model import Command, Place, Use

_VARIABLE = re.compile(r"\bVLLM_[A-Z0-9_]+\b")
_METRIC = re.compile(r"\bvllm:[a-z][a-z0-9_]+")
_DOTTED = re.compile(r"vllm(?:\.[A-Za-z_]\w*){2,8}")
_SERVER = re.compile(
    r"\bvllm\s+serve\b|\bvllm\.entrypoints\.openai\.api_server\b|\bvllm/vllm-openai\b"
)
_ROUTE = re.compile(r"(?:https?://[^/\s\"']+|\{[^{}]*\}|\$\{?\w+\}?|:\d{2,5}|^)(/[\w/.-]+)")
_OPTION = re.compile(r"--[a-z][a-z0-9_-]{1,100}")
_SUFFIXES = ("_bucket", "_count", "_sum", "_total", "_created")
_TAIL = re.compile(r"[;|&<>]+")
_GENERIC_ROUTES = frozenset(
    ("/health", "/metrics", "/ping", "/version", "/docs", "/static", "/load", "/ready", "/readyz")
)
PARSER_OPTIONS = {"--tool-call-parser": "tool", "--reasoning-parser": "reasoning"}
MAX_WORDS = 2000
MAX_COMMANDS = 1000
MAX_UNKNOWN = 500
"""Names that no release has of which it is found out whether they resemble a known one."""
_PREFIX = "VLLM_"


@dataclasses.dataclass(frozen=True)
class Known:
    """Names that any release has: strings of other meaning are no uses.

    ``choices``: options that allow only some values.
    """

    options: OptionNames
    environment: Collection[str]
    routes: Collection[str]
    metrics: Collection[str]
    choices: Collection[str]


class StringReader:
    """Finds the uses in strings of Python source and in the lines of other files."""

    def __init__(self, known: Known) -> None:
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
            return list(self.words([text_of(item) for item in node.elts], place, alone=True))
        text = text_of(node) if isinstance(node, (ast.Constant, ast.JoinedStr)) else ""
        if not text or len(text) > 10_000:
            return []
        uses = list(self.line(text, place))
        if _DOTTED.fullmatch(text):
            uses.append(Use("name", (text,), place))
        if _SERVER.search(text) and " " in text.strip():
            uses += self.words(split(text), place)
        return uses

    def line(self, text: str, place: Place) -> Iterator[Use]:
        """Yield environment variables, metrics and routes in a text."""
        for name in set(_VARIABLE.findall(text)):
            if name in self._known.environment or self._resembles_variable(name):
                yield Use("environment", (name,), place)
        for name in set(_METRIC.findall(text)):
            if (metric := self._metric(name)) is not None:
                yield Use("metric", (metric,), place)
        for route in set(_ROUTE.findall(text)) if "/" in text else ():
            route = route.rstrip("/.")
            if route in self._known.routes and route not in _GENERIC_ROUTES:
                yield Use("route", (route,), place)

    def words(self, words: Sequence[str], place: Place, *, alone: bool = False) -> Iterator[Use]:
        """Yield the options in a command that starts the server; none if it starts something else."""
        if any(
            _SERVER.search(f"{word} {following}")
            for word, following in itertools.pairwise([*words, ""])
        ):
            yield from self.options(words, [place] * len(words), alone=alone)

    def options(
        self, words: Sequence[str], places: Sequence[Place], *, alone: bool = False
    ) -> Iterator[Use]:
        """Yield the options of the server among the words of a command, each with its place. Notes
        the command.

        ``alone``: the words are of no other program, so that any option is meant for the server,
        and may be shortened.
        """
        given: list[tuple[str, str]] = []
        for number, word in enumerate(words[:MAX_WORDS]):
            if not word.startswith("--") or len(word) < 4:
                continue
            name, _, value = word.partition("=")
            head, dot, keys = name.partition(".")
            meaning = self._known.options.find(head) if alone else self._known.options.exact(head)
            place = places[number]
            if meaning is None:
                if _OPTION.fullmatch(head) and (alone or self._is_misspelt(head)):
                    yield Use("option", (head,), place)
                continue
            option = self._positive(meaning)
            yield Use("option", (option,), place)
            value = value or (words[number + 1] if number + 1 < len(words) else "")
            given.append(
                (f"{meaning}{dot}{keys}".replace("_", "-"), "" if value.startswith("--") else value)
            )
            if value and not value.startswith(("-", "$", "{")):
                if option in PARSER_OPTIONS:
                    yield Use("parser", (option,), place, detail=value)
                elif option in self._known.choices:
                    yield Use("choice", (option,), place, detail=value)
        if words and len(self.commands) < MAX_COMMANDS:
            self.commands[Command(places[0], tuple(given))] = None

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


def split(text: str) -> list[str]:
    """Return the words of a command line up to the end of the command; without quotes if they do
    not match."""
    command = _TAIL.split(text[_start(text) :], maxsplit=1)[0]
    try:
        return shlex.split(command, comments=True)
    except ValueError:
        return command.replace('"', " ").replace("'", " ").split()


def _start(text: str) -> int:
    match = _SERVER.search(text)
    return match.start() if match else 0
