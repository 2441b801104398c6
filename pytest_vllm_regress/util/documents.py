"""Parse untrusted JSON, TOML and YAML within bounds of size and depth.

All give plain values only.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import UsageError
from .files import read_bounded

if TYPE_CHECKING:
    import yaml

MAX_KEY_PARTS = 16
"""Limit for a dotted TOML key.

``tomllib`` keeps every prefix of a key, so 64 KB of ``a.a.a`` would take 4 GB.
"""
MAX_DEPTH = 100
MAX_NODES = 100_000
"""Limit of the values in all documents of a text.

What an alias stands for counts at each alias: ten lines of aliases may mean 10^10 values.
"""
MAX_NUMBER = 100
"""Limit of a number's digits.

PyYAML takes time with the square of the digits of ``1:1:1:1``, a number with the base 60.
"""
# Matches strings and comments as a whole, terminated or not, so that the scan is linear. Groups are
# repeated by a plain `*`, which never backtracks here, because Python 3.11.2 loses its position in
# a possessive group.
_TOML = re.compile(
    r'"""(?:[^"\\]++|\\.|"(?!""))*(?:"{3,5})?|\'\'\'(?:[^\']++|\'(?!\'\'))*(?:\'{3,5})?'
    r'|"(?:[^"\\\n]++|\\[^\n])*"?|\'[^\'\n]*+\'?|#[^\n]*+|(?P<dot>\.)|(?P<open>[\[{])|(?P<close>[\]}])|(?P<end>[=\n,])',
    re.DOTALL,
)


def load_json(
    path: Path, limit: int, *, what: str = "a file", error: type[UsageError] = UsageError
) -> Any:
    """Return the JSON document in a regular file of at most ``limit`` bytes.

    Raises ``error``, which names the path.
    """
    try:
        return parse_json(read_bounded(path, limit, what=what, error=error))
    except ValueError as problem:
        raise error(f"{path}: not valid JSON: {problem}") from None


def load_toml(
    path: Path, limit: int, *, what: str = "a file", error: type[UsageError] = UsageError
) -> dict[str, Any]:
    """Return the TOML document in a regular file of at most ``limit`` bytes.

    Raises ``error``, which names the path.
    """
    try:
        return parse_toml(read_bounded(path, limit, what=what, error=error).decode("utf-8"))
    except ValueError as problem:
        raise error(f"{path}: not valid TOML: {problem}") from None


def parse_json(content: str | bytes) -> Any:
    """Return the JSON document. Raises ``ValueError``, also for NaN and infinity."""
    text = content.decode("utf-8") if isinstance(content, bytes) else content
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Return the TOML document.

    Raises ``ValueError``, also for keys of more than ``MAX_KEY_PARTS`` parts and for deep nesting.
    """
    _check_toml_bounds(text)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _check_toml_bounds(text: str) -> None:
    """Raise ``ValueError`` for keys with too many parts and for brackets nested too deeply."""
    dots = depth = 0
    for token in _TOML.finditer(text):
        kind = token.lastgroup
        if kind == "dot":
            dots += 1
        elif kind is not None:
            dots = 0
            depth += (kind == "open") - (kind == "close")
        if dots >= MAX_KEY_PARTS or depth > MAX_DEPTH:
            line = text.count("\n", 0, token.start()) + 1
            raise ValueError(
                f"a key of more than {MAX_KEY_PARTS} parts, or brackets more than {MAX_DEPTH} deep, in line {line}"
            )


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


class YamlSyntaxError(ValueError):
    """A text is no YAML. ``line``: where that was noticed, from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def parse_yaml(text: str, *, text_type: Callable[[str, int], str] | None = None) -> list[Any]:
    """Return the YAML documents in ``text``. ``text_type`` makes texts from a value and its line.

    Raises ``ValueError``, also for one with too many or too deeply nested values.
    """
    import yaml  # takes 20 ms, and most commands read no YAML

    # libyaml is ten times as fast, but not everywhere
    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        pass

    if text_type is not None:
        Loader.add_constructor(
            "tag:yaml.org,2002:str",
            lambda _, node: text_type(node.value, node.start_mark.line + 1),
        )
    try:
        _check_yaml_bounds(text, Loader)
        return list(yaml.load_all(text, Loader))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise YamlSyntaxError(str(error), line) from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _check_yaml_bounds(text: str, loader: type[yaml.SafeLoader]) -> None:
    """Raise ``ValueError`` for more than ``MAX_NODES`` values after the aliases are followed, and
    for huge numbers."""
    import yaml

    count = 0
    sizes: dict[str, int] = {}
    open_nodes: list[tuple[str | None, int]] = []
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in (anchor for anchor, _ in open_nodes):
                raise ValueError(f"the alias {event.anchor} stands for something that contains it")
            count += sizes.get(event.anchor or "", 0)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor is not None:
                sizes[anchor] = count - before
        elif isinstance(event, yaml.NodeEvent):
            count += 1
            if isinstance(event, yaml.CollectionStartEvent):
                open_nodes.append((event.anchor, count - 1))
            elif event.anchor is not None:
                sizes[event.anchor] = 1
            if isinstance(event, yaml.ScalarEvent):
                _check_number(event)
        if count > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES} values, with what its aliases stand for")
        if len(open_nodes) > MAX_DEPTH:
            raise ValueError("nested too deeply")


def _check_number(event: yaml.ScalarEvent) -> None:
    if len(event.value) > MAX_NUMBER and not event.value.strip("+-.0123456789:_"):
        raise ValueError(f"a number of more than {MAX_NUMBER} digits")
