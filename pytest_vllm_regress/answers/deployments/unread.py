"""Names of options and variables in a file that no command in it explains. So that a server is not
said to lack an option that the file gives it in a way the reader does not know."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

from ..api_history.option_names import OptionNames
from ..api_history.store import history
from .findings import DeploymentFinding, ServerCommand

MAX_NAME = 100
MAX_LINE = 10_000
"""Longer lines of a notebook are its output."""
_COMMENT = re.compile(r"(?:^|\s)#.*")
_TOKEN = re.compile(r"(?<![\w-])(-{0,2})([A-Za-z][\w-]+)")
_KEY = re.compile(r"(?<![\w$.{-])([A-Za-z][\w-]*)[\"']?[ \t]*(?:[:=](?!=)|\{[ \t]*$)")
_PART = re.compile(r"[A-Z]{2,}(?![a-z])|[A-Z]?[a-z]+|[A-Z]+")
_FEATURES = {
    "enable_lora": {"lora", "loras", "adapters", "peft"},
    "tool_call_parser": {"tool", "tools", "parser"},
    "enable_auto_tool_choice": {"tool", "tools"},
    "reasoning_parser": {"reasoning", "thinking", "parser"},
    "tensor_parallel_size": {"tp", "tensor", "parallel", "parallelism"},
    "pipeline_parallel_size": {"pp", "pipeline", "parallel", "parallelism"},
    "data_parallel_size": {"dp", "parallel", "parallelism"},
    "kv_transfer_config": {"connector", "transfer"},
    "speculative_config": {"speculative", "draft"},
    "scheduling_policy": {"scheduling"},
    "distributed_executor_backend": {"ray", "executor"},
}
"""Parts of a key that may turn an option on. Charts and operators have keys of their own."""
_RAY = re.compile(r"(?i)\bray\b|RayCluster|RayService")
_VARIABLES = re.compile(r"\bVLLM_\w+\b")


def unread_names(text: str, findings: Iterable[DeploymentFinding]) -> frozenset[str]:
    """Return the options and variables that a text names where no command has them. Comments do not
    count."""
    servers = [finding for finding in findings if isinstance(finding, ServerCommand)]
    consumed = {pair for server in servers for pair in _consumed(server)}
    names: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > MAX_LINE and text.startswith("{"):
            continue
        line = _COMMENT.sub("", line)
        found = set(_named(line))
        keys = {part.lower() for key in _KEY.findall(line) for part in _PART.findall(key)}
        # A key that has the option's own name is judged by that.
        if not found:
            found |= {option for option, parts in _FEATURES.items() if not parts.isdisjoint(keys)}
        if _RAY.search(line):
            found.add("distributed_executor_backend")
        names |= {name for name in found if (number, name) not in consumed}
    return frozenset(names)


def _consumed(server: ServerCommand) -> Iterator[tuple[int, str]]:
    for word in server.words:
        for at, line in enumerate(word.split("\n")):
            for name in _named(line):
                yield word.line + at, name
    for key in server.settings:
        for name in _named(str(key)):
            yield getattr(key, "line", server.line), name


def _named(text: str) -> Iterator[str]:
    """Yield the options, without ``no_``, and the variables that a text names."""
    yield from _VARIABLES.findall(text)
    for dashes, name in _TOKEN.findall(text):
        if len(name) > MAX_NAME:
            continue
        option = _option(dashes, name)
        if option is not None:
            yield option


@cache
def _option(dashes: str, name: str) -> str | None:
    """Return the option that a word means, as an argument or as a key of any spelling."""
    if dashes:
        meaning = names().exact(f"{dashes}{name}") or names().exact(f"--{name}")
        if meaning is not None:
            return field_of(meaning).removeprefix("no_")
    letters = letters_of(name)
    known = by_letters().get(letters) or by_letters().get(letters.removeprefix("vllm"))
    return known.removeprefix("no_") if known else None


@cache
def names() -> OptionNames:
    """Return the options of all known releases."""
    return OptionNames.of(history())


@cache
def by_letters() -> dict[str, str]:
    """Return the options by their letters, whatever is between these."""
    options = (name for name in names().options if name.startswith("--"))
    return {letters_of(name): field_of(name) for name in options} | {"model": "model"}


def letters_of(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def field_of(option: str) -> str:
    return option.lstrip("-").replace("-", "_")
