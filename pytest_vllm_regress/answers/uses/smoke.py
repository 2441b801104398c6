"""What an environment has of the uses of a project: each is imported or bound there, and each
command line is started.

Nothing of the project is run. The environment gets names, numbers of arguments, and options of
which vLLM itself lists the value.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ...engines.session import Session
from ...engines.spec import EngineSpec
from ...engines.standalone import probe_in
from ...errors import ChildError, RegressError, Unsupported
from ...util.deadline import Deadline
from ...util.paths import PACKAGE
from ..api_history.definitions import Option
from ..api_history.store import History
from .check import Status, UseChecker
from .strings import PARSER_OPTIONS
from .use import Command, Place, Project, Use

_TARGET_FILE = PACKAGE / "target_site" / "vllm_regress_target" / "installation" / "usage.py"
_METRIC_LINE = re.compile(r"(?m)^# TYPE (vllm:\w+) ")
_NOWHERE = Command(Place("", 0), ())
_COMPLETIONS = "/v1/completions"
METRICS_S = 20.0
"""Seconds to wait for metrics of the first token."""
_POLL_S = 0.2
MAX_STARTS = 20
"""Different command lines that are started in an environment."""
_NUMBER = re.compile(r"-?\d{1,9}(?:\.\d{1,9})?")
_SMALL = {
    "--max-model-len": "512",
    "--max-num-seqs": "8",
    "--max-num-batched-tokens": "2048",
    "--block-size": "16",
}
"""Sizes that the simulated device is given in place of the project's."""
_LEFT_OUT = re.compile(
    r"--(?:.*-parallel.*|data-parallel.*|nnodes|node-rank|master-.*|headless|api-server-count|host|port|uds|root-path"
    r"|ssl-.*|enable-ssl-refresh|api-key|trust-remote-code|device|quantization|load-format|kv-cache-dtype|dtype|task|runner|convert"
    r"|gpu-memory-utilization|swap-space|cpu-offload-gb|num-gpu-blocks-override|kv-cache-memory-bytes|hf-.*|config|help|version|grpc)"
)
"""Options that concern the machine, the model's weights, or where the server listens."""
Ask = Callable[..., Any]
"""Calls a function of ``usage.py`` in the environment."""


@dataclasses.dataclass(frozen=True)
class TriedUse:
    """``missing``: what the environment lacks of a use; empty if it has it, None if importing and
    starting do not say."""

    use: Use
    missing: str | None


@dataclasses.dataclass(frozen=True)
class ServerWords:
    """Words after ``vllm serve MODEL``, and the options that were left out."""

    words: tuple[str, ...]
    left_out: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Start:
    """One start of the server.

    ``error``: why it did not get to its first token; empty if it did.
    """

    command: Command
    tried: ServerWords
    error: str = ""


@dataclasses.dataclass(frozen=True)
class Offered:
    """Routes and metrics of the servers that were started; None if none was."""

    routes: frozenset[str] | None = None
    metrics: frozenset[str] | None = None

    def merged(self, other: Offered) -> Offered:
        """Return what either has."""
        none: frozenset[str] = frozenset()
        routes = (self.routes or none) | (other.routes or none)
        return Offered(routes, (self.metrics or none) | (other.metrics or none))


@dataclasses.dataclass(frozen=True)
class Smoke:
    """Results in one environment.

    ``offered``: what the servers had; ``differs``: uses of which the history says something else.
    """

    environment: str
    version: str
    tried: tuple[TriedUse, ...]
    starts: tuple[Start, ...]
    offered: Offered
    differs: tuple[Use, ...] = ()

    @property
    def problems(self) -> tuple[TriedUse, ...]:
        """Outcomes of uses that the code does not handle."""
        missing = {tried.use for tried in self.tried if tried.missing}
        return tuple(
            tried
            for tried in self.tried
            if tried.use in missing
            and tried.use.kind != "environment"
            and not tried.use.guarded
            and (not tried.use.instead_of or not missing.isdisjoint(tried.use.instead_of))
        )

    @property
    def failed(self) -> bool:
        return bool(self.problems) or any(start.error for start in self.starts)


class Served(Protocol):
    """The part of a running server that the smoke test uses."""

    @property
    def model(self) -> str: ...
    def get(self, path: str) -> Any: ...
    def post(self, path: str, body: Mapping[str, Any]) -> Any: ...


def smoke(
    session: Session,
    environment: str,
    project: Project,
    history: History,
    say: Callable[[str], None],
) -> Smoke:
    """Return what ``environment`` has of a project.

    Raises the errors of building and importing it.
    """
    target = session.target(environment)
    if target.device == "none":
        raise Unsupported(f"{environment} has no vLLM", needs="vLLM")
    version = target.versions["vllm"]
    releases = history.releases
    is_known = version in releases
    number = releases.index(version) if is_known else len(releases) - 1
    live = [use for use in project.uses if use.live is None or number in use.live]
    checker = UseChecker(history)
    unsure = Status(sure=False)
    recorded = {use: checker.statuses(use)[number] if is_known else unsure for use in live}
    ask = probe_in(session, target, _TARGET_FILE)
    say(f"{environment}: checking {len(live)} uses")
    missing = dict(_checked(ask, live))
    ask.close()
    starts, offered = [], Offered()
    for command, tried in _commands(project, live, history):
        say(f"{environment}: starting vllm serve {' '.join(tried.words)}".rstrip())
        start, more = _start(session, environment, command, tried)
        starts.append(start)
        offered = offered.merged(more)
    for use, status in recorded.items():
        if use.kind == "override" and missing.get(use) and not status.sure:
            missing[use] = None  # before vLLM has the method it is one of the project's own
        elif use.kind in ("route", "metric"):
            missing[use] = _not_offered(use, offered, status.missing)
    differs = tuple(
        use
        for use, status in recorded.items()
        if status.sure
        and (lacks := missing.get(use)) is not None
        and bool(status.missing) != bool(lacks)
    )
    tried_uses = tuple(TriedUse(use, missing[use]) for use in live if use in missing)
    return Smoke(environment, version, tried_uses, tuple(starts), offered, differs)


def _checked(ask: Ask, uses: Sequence[Use]) -> Iterator[tuple[Use, str | None]]:
    """Yield what is missing of each use that can be asked for without a server.

    The same question is asked once.
    """
    answers: dict[str, str | None] = {}
    for use in dict.fromkeys([*uses, *(other for one in uses for other in one.instead_of)]):
        question = _question(use)
        if question is None:
            continue
        key = repr(question)
        if key not in answers:
            function, arguments = question
            try:
                answer = ask(function, **arguments)
            except ChildError:  # a module that ends or blocks its process
                answer = None
            answers[key] = answer if isinstance(answer, str) else None
        yield use, answers[key]


def _question(use: Use) -> tuple[str, dict[str, Any]] | None:
    """Return the function of ``usage.py`` that checks a use, with its arguments; None for what only
    a server says."""
    target, targets = use.targets[0], list(use.targets)
    match use.kind:
        case "name":
            return "name", {"targets": targets}
        case "keyword":
            return "call", {"targets": targets, "positional": 0, "keywords": [use.detail]}
        case "call" if use.call is not None:
            return "call", {"targets": targets, "positional": use.call.positional, "keywords": []}
        case "override" if use.override is not None:
            own = use.override
            return "override", {
                "targets": targets,
                "method": use.detail,
                "names": list(own.names),
                "positional": own.positional,
                "more": [own.any_positional, own.any_keyword],
            }
        case "option" | "choice":
            return "option", {"flag": target, "value": use.detail}
        case "parser":
            return "parser", {"kind": PARSER_OPTIONS[target], "wanted": use.detail}
        case "environment":
            return "environment", {"variable": target}
    return None


def _commands(
    project: Project, live: Sequence[Use], history: History
) -> Iterator[tuple[Command, ServerWords]]:
    """Yield the commands to start, those with equal words once; a plain one if routes or metrics
    are used and there is no command."""
    files = {use.place.file for use in live if use.kind == "option"}
    commands = [
        command
        for command in project.commands
        if not command.options or command.place.file in files
    ]
    if not commands and any(use.kind in ("route", "metric") for use in live):
        commands = [_NOWHERE]
    distinct: dict[tuple[str, ...], tuple[Command, ServerWords]] = {}
    for command in commands:
        tried = server_words(command, lambda name, value: _is_listed(name, value, history))
        distinct.setdefault(tried.words, (command, tried))
    yield from list(distinct.values())[:MAX_STARTS]


def server_words(command: Command, allowed: Callable[[str, str], bool]) -> ServerWords:
    """Return what is tried of a command.

    A value is passed on if it is a number, or if ``allowed`` knows it as one that vLLM lists for
    the option.
    """
    words: list[str] = []
    left_out: list[str] = []
    for name, value in command.options:
        if _LEFT_OUT.fullmatch(name) or "." in name:
            left_out.append(name)
        elif name in _SMALL:
            words += [name, _SMALL[name]]
        elif not value:
            words.append(name)
        elif _NUMBER.fullmatch(value) or allowed(name, value):
            words += [name, value]
        else:
            left_out.append(name)
    if "--enable-auto-tool-choice" in words and not words.count("--tool-call-parser"):
        words.remove("--enable-auto-tool-choice")
        left_out.append("--enable-auto-tool-choice")
    return ServerWords(tuple(words), tuple(dict.fromkeys(left_out)))


def _is_listed(name: str, value: str, history: History) -> bool:
    """Return whether vLLM lists a value for an option: a choice, or a registered parser."""
    if name in PARSER_OPTIONS:
        return f"{PARSER_OPTIONS[name]}:{value}" in history.table("parsers")
    texts = history.table("options").get(name, ())[1::2]
    return any(value in Option.of(text).choices for text in texts if isinstance(text, str))


def _start(
    session: Session, environment: str, command: Command, tried: ServerWords
) -> tuple[Start, Offered]:
    """Start a server, wait for its first token, and read which routes and metrics it has."""
    spec = EngineSpec(command_line=tried.words)
    try:
        server = session.start("serve", session.target(environment), spec, user="uses", fresh=True)
    except (ChildError, Unsupported) as error:
        return Start(command, tried, _reason(error)), Offered()
    try:
        return Start(command, tried), offered_by(server)
    except RegressError as error:
        return Start(command, tried, _reason(error)), Offered()
    finally:
        server.stop()


def offered_by(server: Served) -> Offered:
    """Return the routes in a server's description of its API, and the metrics that it reports after
    its first token."""
    document = server.get("/openapi.json").json()
    paths = frozenset((document.get("paths") if isinstance(document, dict) else None) or ())
    if _COMPLETIONS in paths:
        server.post(
            _COMPLETIONS, {"model": server.model, "prompt": "One token, please", "max_tokens": 1}
        )
    return Offered(paths, _metrics(server))


def _metrics(server: Served) -> frozenset[str]:
    """Return the names of the metrics.

    Older engines first report them some time after a request: wait until tokens are counted.
    """
    deadline = Deadline.after("metrics", METRICS_S)
    while True:
        names = frozenset(_METRIC_LINE.findall(server.get("/metrics").text))
        if deadline.passed or any("generation_tokens" in name for name in names):
            return names
        time.sleep(_POLL_S)


def _not_offered(use: Use, offered: Offered, recorded: str) -> str | None:
    """Return what is missing of a route or a metric.

    A server may offer more with other options, so what it does not offer is missing only if the
    history says the same (``recorded``).
    """
    name = use.targets[0]
    there = offered.routes if use.kind == "route" else offered.metrics
    if there is None:
        return None
    stem = name.removesuffix("_total")
    names = {name} if use.kind == "route" else {stem, f"{stem}_total"}
    return "" if names & there else recorded or None


def _reason(error: RegressError) -> str:
    """Return the first line of a failure that says something."""
    text = str(error.args[0] if error.args else error).strip()
    return (text.splitlines() or [type(error).__name__])[0].strip()[:500]
