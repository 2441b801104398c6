"""What an environment has of the uses of a project: each is imported or bound there, and each
command line is started.

Nothing of the project is run. The environment gets names, numbers of arguments, and options of
which vLLM itself lists the value.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from ...engines.session import Session
from ...engines.spec import EngineSpec
from ...engines.standalone import probe_in
from ...errors import ChildError, RegressError, Unsupported
from ...util.deadline import Deadline
from ...util.paths import PACKAGE
from ..api_history.definitions import options_in
from ..api_history.store import History
from .check import UNSURE, UseChecker, spellings
from .strings import PARSER_OPTIONS
from .use import Command, Place, Project, Use

if TYPE_CHECKING:
    from ...engines.server import Server

_TARGET_FILE = PACKAGE / "target_site" / "vllm_regress_target" / "installation" / "usage.py"
_METRIC_LINE = re.compile(r"(?m)^# TYPE (vllm:\w+) ")
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


@dataclass(frozen=True)
class Start:
    """One start of the server. ``words``: those after ``vllm serve MODEL``; ``left_out``: options.

    ``error``: why it did not get to its first token; empty if it did.
    """

    command: Command
    words: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Smoke:
    """Results in one environment.

    ``missing``: what it lacks of a use; empty if it has it, None if importing and starting do not
    say. ``offered``: the routes and metrics of the servers; ``differs``: uses of which the history
    says something else.
    """

    environment: str
    version: str
    missing: Mapping[Use, str | None] = field(hash=False)
    starts: tuple[Start, ...]
    offered: frozenset[str]
    differs: tuple[Use, ...] = ()

    @property
    def problems(self) -> tuple[Use, ...]:
        """Missing uses that the code does not handle, as far as it is understood."""
        return tuple(
            use
            for use, lacks in self.missing.items()
            if lacks
            and use.kind != "environment"
            and not (use.guarded or use.perhaps)
            and (not use.instead_of or any(map(self.missing.get, use.instead_of)))
        )

    @property
    def failed(self) -> bool:
        return bool(self.problems) or any(start.error for start in self.starts)


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
    is_known = version in history.releases
    number = history.releases.index(version) if is_known else len(history.releases) - 1
    live = [use for use in project.uses if use.live is None or number in use.live]
    checker = UseChecker(history)
    recorded = {use: checker.statuses(use)[number] if is_known else UNSURE for use in live}
    ask = probe_in(session, target, _TARGET_FILE)
    say(f"{environment}: checking {len(live)} uses")
    checked = dict(_checked(ask, live))
    ask.close()
    starts: list[Start] = []
    offered = frozenset[str]()
    for start in _starts(project, live, history):
        say(f"{environment}: starting vllm serve {' '.join(start.words)}".rstrip())
        tried, more = _start(session, environment, start)
        starts.append(tried)
        offered |= more
    for use, status in recorded.items():
        if use.kind == "override" and checked.get(use) and not status.sure:
            checked[use] = None  # before vLLM has the method it is one of the project's own
        elif use.kind in ("route", "metric"):
            # With other options a server may offer more: the history must say the same.
            lacks = "" if spellings(use) & offered else status.missing or None
            checked[use] = lacks if offered else None
    missing = {use: checked[use] for use in live if use in checked}
    differs = tuple(
        use
        for use, lacks in missing.items()
        if recorded[use].sure and lacks is not None and bool(recorded[use].missing) != bool(lacks)
    )
    return Smoke(environment, version, missing, tuple(starts), offered, differs)


def _checked(ask: Callable[..., Any], uses: Iterable[Use]) -> Iterator[tuple[Use, str | None]]:
    """Yield what is missing of each use that can be asked for without a server. ``ask`` calls a
    function of ``usage.py`` in the environment.

    The same question is asked once.
    """
    answers: dict[str, str | None] = {}
    for use in uses:
        if (question := _question(use)) is None:
            continue
        key = repr(question)
        if key not in answers:
            answers[key] = None
            with suppress(ChildError):  # a module that ends or blocks its process
                answer = ask(question[0], **question[1])
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
                "names": list(own.names()),
                "positional": len(own.positional()),
                "more": [own.has("args"), own.has("kwargs")],
            }
        case "option" | "choice":
            return "option", {"flag": target, "value": use.detail}
        case "parser":
            return "parser", {"kind": PARSER_OPTIONS[target], "wanted": use.detail}
        case "environment":
            return "environment", {"variable": target}
    return None


def _starts(project: Project, live: Sequence[Use], history: History) -> Iterator[Start]:
    """Yield the servers to start, those with equal words once; a plain one if routes or metrics
    are used and there is no command."""
    files = {use.place.file for use in live if use.kind == "option"}
    commands = [
        command
        for command in project.commands
        if not command.options or command.place.file in files
    ]
    if not commands and any(use.kind in ("route", "metric") for use in live):
        commands = [Command(Place("", 0), ())]
    distinct: dict[tuple[str, ...], Start] = {}
    for command in commands:
        start = planned(command, partial(_is_listed, history))
        distinct.setdefault(start.words, start)
    return islice(distinct.values(), MAX_STARTS)


def planned(command: Command, allowed: Callable[[str, str], bool]) -> Start:
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
    choice = "--enable-auto-tool-choice"
    if choice in words and "--tool-call-parser" not in words:
        words.remove(choice)
        left_out.append(choice)
    return Start(command, tuple(words), tuple(dict.fromkeys(left_out)))


def _is_listed(history: History, name: str, value: str) -> bool:
    """Return whether vLLM lists a value for an option: a choice, or a registered parser."""
    if name in PARSER_OPTIONS:
        return f"{PARSER_OPTIONS[name]}:{value}" in history.table("parsers")
    return any(
        value in option.choices for option in options_in(history.table("options").get(name, ()))
    )


def _start(session: Session, environment: str, start: Start) -> tuple[Start, frozenset[str]]:
    """Start a server, wait for its first token, and read which routes and metrics it has."""
    spec = EngineSpec(command_line=start.words)
    try:
        server = session.start("serve", session.target(environment), spec, user="uses", fresh=True)
        try:
            return start, offered_by(server)
        finally:
            server.stop()
    except RegressError as error:
        return replace(start, error=_reason(error)), frozenset()


def offered_by(server: Server) -> frozenset[str]:
    """Return the routes in a server's description of its API, and the metrics that it reports after
    its first token."""
    document = server.get("/openapi.json").json()
    paths = frozenset((document.get("paths") if isinstance(document, dict) else None) or ())
    if _COMPLETIONS in paths:
        server.post(
            _COMPLETIONS, {"model": server.model, "prompt": "One token, please", "max_tokens": 1}
        )
    return paths | _metrics(server)


def _metrics(server: Server) -> frozenset[str]:
    """Return the names of the metrics.

    Older engines first report them some time after a request: wait until tokens are counted.
    """
    deadline = Deadline.after("metrics", METRICS_S)
    while True:
        text = server.get("/metrics").text
        names = frozenset(_METRIC_LINE.findall(text))
        if deadline.passed or any("generation_tokens" in name for name in names):
            return names
        time.sleep(_POLL_S)


def _reason(error: RegressError) -> str:
    """Return the first line of a failure that says something."""
    text = str(error.args[0] if error.args else error).strip()
    return (text.splitlines() or [type(error).__name__])[0].strip()[:500]
