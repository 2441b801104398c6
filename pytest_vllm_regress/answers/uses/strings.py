"""Uses of vLLM in commands and names: of other files than Python, and in strings of Python source.

What a text says is read by ``deployments.reader``. Here it becomes uses, as far as any release
knows the name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest

from ..api_history.definitions import options_in, text_of
from ..api_history.option_names import OptionNames, closest
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


class StringReader:
    """Finds the uses in strings of Python source and in the lines of other files: names that any
    release has. Strings of other meaning are no uses."""

    def __init__(self, history: History) -> None:
        self._option_names = OptionNames.of(history)
        self._with_choices = {
            name
            for name, timeline in history.table("options").items()
            if any(option.choices for option in options_in(timeline))
        }
        self._environment = history.table("environment")
        self._routes = history.table("routes")
        self._metrics = history.table("metrics")
        self._variables = [
            name.removeprefix(_PREFIX) for name in self._environment if name.startswith(_PREFIX)
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
            return [use for server in servers(words) for use in self._options(server, place)]
        text = text_of(node) if isinstance(node, (ast.Constant, ast.JoinedStr)) else ""
        if not text or len(text) > MAX_STRING:
            return []
        uses = [use for kind, name in names_in(text) for use in self._named(kind, name, place)]
        if _DOTTED.fullmatch(text):
            uses.append(Use("name", (text,), place))
        if "vllm" in text and " " in text.strip():  # a command may go on in the next line
            command = split(text.replace("\n", " "), place.line)
            for words in commands(command):
                for server in servers(words):
                    uses += self._options(server, place, alone=False)
        return uses

    def read(self, finding: DeploymentFinding, file: str) -> Iterator[Use]:
        """Yield the uses in what was read of a file."""
        if isinstance(finding, Mention):
            yield from self._named(finding.kind, finding.name, Place(file, finding.line))
        elif isinstance(finding, ServerCommand):
            place = Place(file, finding.line)
            yield from self._options(finding, place, alone=finding.is_certain)

    def _named(self, kind: str, name: str, place: Place) -> Iterator[Use]:
        """Yield a use of a variable, metric or route, if there is one of this name."""
        known = True
        match kind:
            case "environment":
                known = name in self._environment or self._resembles(name)
            case "metric":
                stems = (name.removesuffix(suffix) for suffix in _SUFFIXES)
                found = (stem for stem in (name, *stems, f"{name}_total") if stem in self._metrics)
                name = next(found, "")
            case "route":
                name = name.rstrip("/.")
                known = name in self._routes and name not in _GENERIC_ROUTES
        if name and known:
            yield Use(kind, (name,), place)

    def _options(self, server: ServerCommand, place: Place, *, alone: bool = True) -> Iterator[Use]:
        """Yield the options of a server, each with its place. Notes the command, which is at
        ``place``.

        ``alone``: any option is certainly meant for the server, and may be shortened.
        """
        given: list[tuple[str, str]] = []
        for word, following in zip_longest(
            server.words[:MAX_WORDS], server.words[1 : MAX_WORDS + 1], fillvalue=Word("")
        ):
            if not word.startswith("--") or len(word) < 4:
                continue
            at = replace(place, line=word.line)
            name, _, value = str(word).partition("=")
            head, dot, keys = name.partition(".")
            meaning = (self._option_names.find if alone else self._option_names.exact)(head)
            if meaning is None:
                if _OPTION.fullmatch(head) and (alone or self._resembles(head)):
                    yield Use("option", (head,), at)
                continue
            is_positive = meaning in self._option_names.options
            option = meaning if is_positive else f"--{meaning.removeprefix('--no-')}"
            yield Use("option", (option,), at)
            value = value or str(following)
            full = f"{meaning}{dot}{keys}".replace("_", "-")
            given.append((full, "" if value.startswith("--") else value))
            if value and not value.startswith(("-", "$", "{")):
                if option in PARSER_OPTIONS:
                    yield Use("parser", (option,), at, detail=value)
                elif option in self._with_choices:
                    yield Use("choice", (option,), at, detail=value)
        if len(self.commands) < MAX_COMMANDS:
            self.commands[Command(place, tuple(given))] = None

    def _resembles(self, name: str) -> bool:
        """Return whether an option or a variable that no release has is probably a known one with
        an error. Projects have variables ``VLLM_...`` of their own."""
        if name not in self._resembling and len(self._resembling) < MAX_UNKNOWN:
            self._resembling[name] = (
                bool(closest(name.removeprefix(_PREFIX), self._variables))
                if name.startswith(_PREFIX)
                else self._option_names.is_misspelt(name)
            )
        return self._resembling.get(name, False)
