"""Uses of vLLM in commands and names: of other files than Python, and in strings of Python source.

What a text says is read by ``deployments.reader``. Here it becomes uses, as far as any release
knows the name.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from ..api_history.definitions import last_name, options_in, text_of, walk
from ..api_history.option_names import OptionNames, closest
from ..api_history.store import History, intervals
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
NEAR = 3
"""Lines before and after a string outside of functions that say to which server it speaks."""
_OTHER_SERVER = re.compile(
    r"(?i)sglang|sgl_|(?:^|[^a-z])tgi(?:[^a-z]|$)|text[_-]?generation[_-]?inference|ollama|lmdeploy|turbomind|tensorrt|trt[_-]?llm|triton"
    r"|llama[_.-]?cpp|llamafile|lm[_-]?studio|koboldcpp|exllama|deepspeed|infinity_emb|localai|litellm|anthropic|azure|cohere|huggingface_hub"
)
_REGISTERS = re.compile(
    r"add_(?:api_|url_|web_?socket_)*(?:route|rule|get|post|put|delete)|add_api_websocket_route|(?:API|WebSocket)?Route|Mount"
)
_MAKES_METRIC = re.compile(
    r"(?i)(?!_*(?:get|read|fetch|find|query|sum|parse)_)\w*(?:gauge|counter|histogram|summary|family)(?:_?(?:cls|class|type|wrapper))?"
)
"""Names of what offers a metric. A project's ``GaugeMetric("vllm:x")`` may stand for one that it
reads."""
_OTHER_IMAGE = re.compile(r"^(?!.*\bvllm/vllm-openai).*[a-z]")
_SETS = re.compile(r"\s*(?:export\s+)?VLLM_[A-Z0-9_]+\s*(?:=\S*\s*)?$|\s*export\s+VLLM_\w+=")
"""A string that is the name of a variable, or sets one."""


MAX_METRICS = 200
"""Most metrics of one file that are checked for one replacing another."""
MAX_NODES = 2000
"""Most nodes of a statement or an expression that are searched for metrics."""
MAX_ALTERNATIVES = 12
"""Most alternatives of one metric."""
SIMILAR = 0.6
"""Share of common words from which one metric may be the new name of another."""
_METRIC = re.compile(r"vllm:[a-z]\w+")
_FORMER = re.compile(r"(?i)(?:^|_)(?:deprecated|legacy|old|former|previous|fallback)(?:$|_)")
"""Names of constants with the former name of a metric."""
_CHOOSES = re.compile(r"(?i)_*(?:next|first|any|either|coalesce|fallback|one_?of)(?:$|_)")
"""Names of functions that return the first existing item."""


def alternatives_in(tree: ast.AST) -> Iterator[tuple[frozenset[str], frozenset[str]]]:
    """Yield metrics of which the source takes those of one group where one of the other is not
    there."""
    bound: dict[str, frozenset[str]] = {}
    every: set[str] = set()

    def named(*nodes: ast.AST) -> frozenset[str]:
        metrics: set[str] = set()
        parts = (part for node in nodes for part in walk(node))
        for part in itertools.islice(parts, MAX_NODES):
            if isinstance(part, ast.Name):
                metrics |= bound.get(part.id, frozenset())
            elif _METRIC.match(text := text_of(part)):
                metrics.add(text)
        every.update(list(metrics)[: MAX_METRICS - len(every)])
        return frozenset(metrics) if len(metrics) <= MAX_ALTERNATIVES else frozenset()

    for node in walk(tree):
        match node:
            case ast.Assign([ast.Name(name)], value) if metrics := named(value):
                bound[name] = metrics
    for node in walk(tree):
        match node:
            case ast.Assign([ast.Name(name)], value) if _FORMER.search(name):
                for former in named(value):
                    yield frozenset((former,)), frozenset(m for m in every if _alike(former, m))
            case ast.If(test, body, other) if (tested := named(test)) and not _compares(test):
                yield tested, named(*(body if _asks_for_none(test) else other))
            case ast.IfExp(test, body, other) if tested := named(test):
                yield tested, named(body if _asks_for_none(test) else other)
            case ast.BoolOp(ast.Or(), values):
                yield from itertools.combinations(map(named, values[:MAX_ALTERNATIVES]), 2)
            case ast.Call(function, [first, *others]) if last_name(function) == "get":
                yield named(first), named(*others)
            case ast.Call(function, arguments) if _CHOOSES.match(last_name(function)):
                yield named(*arguments), named(*arguments)
            case ast.For(iter=ast.Tuple() | ast.List() as names, body=body):
                if any(isinstance(p, (ast.Break, ast.Return)) for b in body for p in walk(b)):
                    yield named(names), named(names)


def metric_spellings(name: str) -> tuple[str, str]:
    """Return the names that the sources may have for a metric: Prometheus' client adds "_total" to
    the name of a counter."""
    stem = name.removesuffix("_total")
    return stem, f"{stem}_total"


def _servers_of(node: ast.List | ast.Tuple) -> Iterator[ServerCommand]:
    return servers([Word(text_of(item), node.lineno) for item in node.elts])


def starts_server(node: ast.expr | None) -> bool:
    """Return whether a list of words starts the server."""
    return isinstance(node, ast.List) and any(_servers_of(node))


def _compares(test: ast.expr) -> bool:
    """Return whether a test finds out which name it has, not whether a metric is there."""
    nodes = (node for node in walk(test) if isinstance(node, ast.Compare))
    return any(isinstance(sign, (ast.Eq, ast.NotEq)) for node in nodes for sign in node.ops)


def _alike(one: str, other: str) -> bool:
    """Return whether the names of two metrics have many words in common."""
    words = [
        {word.removesuffix("s") for word in name.removeprefix("vllm:").split("_")}
        for name in (one, other)
    ]
    return len(words[0] & words[1]) >= SIMILAR * len(words[0] | words[1])


def _asks_for_none(test: ast.expr) -> bool:
    """Return whether a test is true where something is not there."""
    match test:
        case ast.UnaryOp(ast.Not()) | ast.Compare(ops=[ast.Is() | ast.NotIn()]):
            return True
    return False


@dataclass(frozen=True)
class Surroundings:
    """What is around a string. ``names``: of its file, classes and functions; ``lines``: of the
    file, in lower case, of which ``first`` to ``last`` are near."""

    names: tuple[str, ...]
    lines: Sequence[str]
    first: int
    last: int

    def speak_to_vllm(self, text: str, route: str) -> bool:
        """Return whether there is evidence that the address in a text is vLLM's. Other servers and
        the project itself have routes of the same names, less often one of several words: for that
        the whole file tells."""
        if any(_OTHER_SERVER.search(name) for name in self.names):
            return False
        named = "vllm" in self.names[0].rpartition("/")[2].lower()
        if named or any("vllm" in name.lower() for name in self.names[1:]):
            return True
        around = [self.lines[self.first : self.last], *([self.lines] if "_" in route else ())]
        return any(
            not any(_OTHER_SERVER.search(line) for line in lines)
            and (":8000/" in text or any("vllm" in line for line in lines))
            for lines in around
        )


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
        self._defined: set[str] = set()
        self._prefixes: set[str] = set()
        self._own_metrics: dict[str, set[str]] = defaultdict(set)
        self.scraping: set[str] = set()
        """Files that read metrics of a server."""
        self.commands: dict[Command, None] = {}
        self._alternatives: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._count = len(history.releases)

    def choose(self, file: str, groups: Iterable[tuple[frozenset[str], frozenset[str]]]) -> None:
        """Note the metrics in a file of which it needs only one, see ``alternatives_in``."""
        for group in groups:
            for one, other in itertools.product(*(map(self._known_metric, part) for part in group)):
                self._alternatives[file, one].add(other)
                self._alternatives[file, other].add(one)

    def with_alternatives(self, uses: Sequence[Use]) -> Iterator[Use]:
        """Yield the uses; those of metrics with the others of the same file that stand for them."""
        metrics: dict[str, set[str]] = defaultdict(set)
        for use in uses:
            if use.kind == "metric":
                metrics[use.place.file].add(use.targets[0])
        targets: dict[tuple[str, str], tuple[str, ...]] = {}
        for file, names in metrics.items():
            for name in names:
                near = names if len(names) <= MAX_METRICS else ()
                others = {other for other in near if self._replaces(name, other)}
                others |= self._alternatives.get((file, name), set())
                targets[file, name] = name, *sorted(others - {name, ""})
        for use in uses:
            if use.kind == "metric":
                use = replace(use, targets=targets[use.place.file, use.targets[0]])
            yield use

    def _replaces(self, one: str, other: str) -> bool:
        """Return whether one metric is the new name of the other: names alike, and each exists in
        releases that lack the other."""
        if one == other or not _alike(one, other):
            return False
        have = [
            {
                number
                for spelling in metric_spellings(name)
                for start, end, _ in intervals(self._metrics.get(spelling, []), self._count)
                for number in range(start, end)
            }
            for name in (one, other)
        ]
        is_gradual = min(have[1]) <= max(have[0]) + 1 and min(have[0]) <= max(have[1]) + 1
        return is_gradual and not (have[0] <= have[1] or have[1] <= have[0])

    def define(self, route: str) -> None:
        """Note a route of the project's own server."""
        if route.startswith("/"):
            self._defined.add(route.rstrip("/"))

    def define_by(self, call: ast.expr, file: str, *, decorates: bool = False) -> None:
        """Note the routes and metrics that a decorator or a call registers in the project's own
        server: ``@app.get("/x")``, ``app.get("/x")(f)``, ``app.add_api_route("/x", f)``,
        ``Gauge("vllm:x", ...)``."""
        if not isinstance(call, ast.Call):
            return
        name, first = last_name(call.func), text_of(call.args[0]) if call.args else ""
        named = {word.arg: text_of(word.value) for word in call.keywords}
        if decorates or _REGISTERS.fullmatch(name):
            self.define(first or named.get("path") or named.get("rule") or "")
        if isinstance(call.func, ast.Call) and call.func.args:
            self.define(text_of(call.func.args[0]))
        if (prefix := named.get("prefix") or named.get("url_prefix") or "").startswith("/"):
            self._prefixes.add(prefix.rstrip("/"))
        metric = first or named.get("name") or ""
        if metric.startswith("vllm:") and _MAKES_METRIC.fullmatch(name):
            for name in self._metric_names(metric):
                self._own_metrics[name].add(file)

    def is_own(self, use: Use) -> bool:
        """Return whether a route or metric is one that the project registers itself. A router may
        offer metrics of the same names as those that it reads."""
        name = use.targets[0]
        if use.kind == "metric":
            makers = self._own_metrics.get(name, set())
            return bool(makers) and (
                use.place.file in makers or use.place.file not in self.scraping
            )
        return use.kind == "route" and (
            name in self._defined
            or any(
                name.startswith(prefix) and name.removeprefix(prefix) in self._defined
                for prefix in self._prefixes
            )
        )

    def uses_in(self, node: ast.AST, place: Place, around: Surroundings) -> list[Use]:
        """Return the uses in one node of Python source: a string, or a list of words that starts
        the server."""
        if isinstance(node, (ast.List, ast.Tuple)):
            return [use for s in _servers_of(node) for use in self._options(s, place)]
        text = text_of(node) if isinstance(node, (ast.Constant, ast.JoinedStr)) else ""
        if not text or len(text) > MAX_STRING:
            return []
        uses = [Use("name", (text,), place)] if _DOTTED.fullmatch(text) else []
        starts = False
        if "vllm" in text and " " in text.strip():  # a command may go on in the next line
            command = split(text.replace("\n", " "), place.line)
            for words in commands(command):
                for server in servers(words):
                    starts = True
                    uses += self._options(server, place, alone=False)
        for kind, name in names_in(text):
            # A variable in a sentence is explained, not set.
            is_set = kind != "environment" or starts or _SETS.match(text)
            if is_set and (kind != "route" or around.speak_to_vllm(text, name)):
                uses += self._named(kind, name, place)
        return uses

    def option_of(self, argument: str) -> str:
        """Return the option that an attribute of parsed arguments is of; empty if it is none."""
        option = f"--{argument.replace('_', '-')}"
        return option if option in self._option_names.options else ""

    def added(self, node: ast.expr, place: Place) -> Iterator[Use]:
        """Yield the options in what is added to the words of a command that starts the server."""
        words = [Word(text_of(item), place.line) for item in getattr(node, "elts", [node])]
        return self._given(words, place, [])

    def read(self, finding: DeploymentFinding, file: str) -> Iterator[Use]:
        """Yield the uses in what was read of a file."""
        if isinstance(finding, Mention):
            yield from self._named(finding.kind, finding.name, Place(file, finding.line))
        elif isinstance(finding, ServerCommand):
            place = Place(file, finding.line)
            other = bool(_OTHER_IMAGE.search(finding.image))
            for use in self._options(finding, place, alone=finding.is_certain):
                yield replace(use, other_image=other)

    def read_document(
        self, findings: Iterable[DeploymentFinding], lines: Mapping[int, str], file: str
    ) -> Iterator[Use]:
        """Yield the uses in what was read of a document: commands, and in the lines of its code the
        variables that these set, and metrics. Other names are explained there, or someone else's."""
        for finding in findings:
            if isinstance(finding, Mention):
                line = lines.get(finding.line, "")
                sets = re.search(rf"(?:^|[\s\"']){finding.name}=", line) is not None
                if not (
                    line and (sets if finding.kind == "environment" else finding.kind == "metric")
                ):
                    continue
            yield from self.read(finding, file)

    def _named(self, kind: str, name: str, place: Place) -> Iterator[Use]:
        """Yield a use of a variable, metric or route, if there is one of this name."""
        known = True
        match kind:
            case "environment":
                known = name in self._environment or self._resembles(name)
            case "metric":
                name = self._known_metric(name)
            case "route":
                name = name.rstrip("/.")
                known = name in self._routes and name not in _GENERIC_ROUTES
        if name and known:
            yield Use(kind, (name,), place)

    def _known_metric(self, name: str) -> str:
        """Return the name of a metric in the sources; empty if no release has it."""
        return next((stem for stem in self._metric_names(name) if stem in self._metrics), "")

    def _metric_names(self, name: str) -> Iterator[str]:
        """Yield the names that a metric may have in the sources, of which the client library makes
        ``name``."""
        yield from (name, *(name.removesuffix(suffix) for suffix in _SUFFIXES), f"{name}_total")

    def _options(self, server: ServerCommand, place: Place, *, alone: bool = True) -> Iterator[Use]:
        """Yield the options of a server, each with its place. Notes the command, which is at
        ``place``.

        ``alone``: any option is certainly meant for the server, and may be shortened.
        """
        given: list[tuple[str, str]] = []
        yield from self._given((*server.words, *server.sometimes), place, given, alone=alone)
        if len(self.commands) < MAX_COMMANDS:
            self.commands[Command(place, tuple(given))] = None

    def _given(
        self,
        words: Sequence[Word],
        place: Place,
        given: list[tuple[str, str]],
        *,
        alone: bool = True,
    ) -> Iterator[Use]:
        """Yield the options among words, each with its place. Adds them to ``given``."""
        for word, following in zip_longest(
            words[:MAX_WORDS], words[1 : MAX_WORDS + 1], fillvalue=Word("")
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
