"""The configuration of a deployment: the options and variables with which a command line of
``vllm serve``, or a file that has one, starts the server. What the file says is read by
``reader``; here its words get the meaning that vLLM's parser gives them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ...errors import UsageError
from ...util.files import expand_home, read_bounded
from ...util.validation import format_value
from ..api_history.option_names import OptionNames
from ..api_history.store import history
from .reader import MAX_COMMAND, UNSET, ServerCommand, Unreadable, literal, read

MAX_BYTES = 1024 * 1024
MAX_DEPLOYMENTS = 100
MAX_NOTES = 5
MAX_NEAR = 5
_OPTION = re.compile(r"(--?[A-Za-z][\w-]*)((?:\.[\w.-]*)?)\+?(?:=(.*))?", re.DOTALL)
_REFERENCE = re.compile(r"\$[\w@*{(].*", re.DOTALL)
_OF_MORE = re.compile(r"(?i)\$[{(]?(?:[@*]|\w*(?:arg|opt|flag|extra|param)|\w+\[)")
"""A variable whose name says that it holds more options, also where a value may stand."""
_ALLOWED = "a command line with `vllm serve` or `docker run`, a Dockerfile, or YAML: a compose file, a Kubernetes manifest, Helm values"


@dataclass(frozen=True)
class Deployment:
    """Options of one ``vllm serve``, by their names with underscores, and variables of its process.

    ``options``: a text, True for an option without a value, ``UNSET`` where a variable decides.
    ``complete``: whether an option that is not named has its default. It may not if a configuration
    file or a variable adds options.
    ``notes``: options that no release has. ``release``: the version in the tag of vLLM's own image;
    empty if there is none.
    """

    source: str
    options: Mapping[str, Any] = field(hash=False)
    variables: Mapping[str, str] = field(default_factory=dict, hash=False)
    complete: bool = True
    notes: tuple[str, ...] = ()
    release: str = ""

    def value(self, option: str, default: Any) -> Any:
        """Return the value of an option. Where it is not named, the default counts if nothing else
        may name it."""
        return self.options.get(option, default if self.complete else UNSET)


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
        content = read_bounded(path, MAX_BYTES, what="a deployment").decode("utf-8", "replace")
    elif " " not in text.strip():
        raise UsageError(f"--serve {format_value(text)}: no such file. Give {_ALLOWED}")
    if not (deployments := tuple(_deployments(content, source))):
        raise UsageError(f"--serve {format_value(text)}: starts no vLLM. Allowed are {_ALLOWED}")
    return deployments


def _deployments(text: str, source: str) -> Iterator[Deployment]:
    """Yield what a text starts. Raises ``UsageError`` for more than ``MAX_DEPLOYMENTS``."""
    number = 0
    for finding in read(text, source):
        if isinstance(finding, Unreadable):
            raise UsageError(
                f"{source}: not valid YAML: {finding.reason}. For a Helm chart give its values, or the output of `helm template`"
            )
        if isinstance(finding, ServerCommand) and not finding.at_build:
            if number == MAX_DEPLOYMENTS:
                raise UsageError(
                    f"{source}: starts more than {MAX_DEPLOYMENTS} servers; give a part of it"
                )
            number += 1
            yield _deployment(finding, source)


def _deployment(server: ServerCommand, source: str) -> Deployment:
    if sum(map(len, server.words)) > MAX_COMMAND:
        raise UsageError(
            f"--serve: a command of more than {MAX_COMMAND} characters, which is the limit: {format_value(' '.join(server.words)[:100])}"
        )
    place = f"{source} ({server.label})" if server.label else source
    given, complete, notes = _read_arguments(server.words)
    options = {**server.settings, **given}
    complete = complete and "config" not in options
    return Deployment(place, options, server.variables, complete, notes, server.release)


def _read_arguments(words: Sequence[str]) -> tuple[dict[str, Any], bool, tuple[str, ...]]:
    """Return the options among the arguments of ``vllm serve``, as its parser reads them, whether no
    variable may hold more options, and notes about options that no release has.

    What an unknown option may mean gets the value ``UNSET``.
    """
    names = _names()
    options: dict[str, Any] = {}
    unknown: dict[str, tuple[str, ...]] = {}
    name, complete = "model", True
    for word in words:
        match = _OPTION.fullmatch(word)
        if match is None:
            is_value = options.get(name, True) is True
            if is_value:
                options[name] = literal(word)
            if _REFERENCE.fullmatch(word) and (not is_value or _OF_MORE.match(word)):
                complete = False
            continue
        option, keys, value = match.groups()
        if option.startswith("-O"):  # the level may follow without a space
            option, value = "--optimization-level", option[2:] or value
        meaning = names.find(option)
        if meaning is None:
            unknown.setdefault(option, names.near(option) if len(unknown) < MAX_NOTES else ())
        name = _field((meaning or option) + keys)
        options[name] = True if value is None else literal(value)
    for negated in [name for name in options if name.startswith("no_") and options[name] is True]:
        options[negated.removeprefix("no_")] = False
    for near in unknown.values():
        for option in near:
            options.setdefault(_field(option).removeprefix("no_"), UNSET)
    return options, complete, _notes(unknown)


@cache
def _names() -> OptionNames:
    return OptionNames.of(history())


def _field(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _notes(unknown: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    notes = []
    for option, near in unknown.items():
        more = f" and {len(near) - MAX_NEAR} more" if len(near) > MAX_NEAR else ""
        advice = f"; close to it: {', '.join(near[:MAX_NEAR])}{more}" if near else ""
        notes.append(f"{format_value(option)} is no option of vllm serve that is known{advice}")
    if len(unknown) > MAX_NOTES:
        notes[MAX_NOTES:] = [f"{len(unknown) - MAX_NOTES} more options are not known"]
    return tuple(notes)
