"""Ranges of releases that a project declares in lists of requirements."""

from __future__ import annotations

import ast
import re
import warnings
from collections import deque
from collections.abc import Iterator

from packaging.utils import canonicalize_name

from ...util.documents import parse_toml
from ...util.versions import requirement_of, specifiers_of, version_of
from .use import Declared, Place

_NUMBER = re.compile(r"\d+(?:\.\d+)*")
_CARET = re.compile(r"\^\s*(\d+(?:\.\d+)*)")
_MALFORMED = re.compile(
    r"^[\s\"',\[]*vllm(?:\[[\w,-]*\])?\s*=(?!=)\s*\d[\w.*]*", re.IGNORECASE | re.MULTILINE
)
MAX_ITEMS = 50_000


class MalformedRequirement(ValueError):
    """Raised if the only line with a version of vLLM is not a valid requirement, such as
    ``vllm=0.8``."""


def declared_in(text: str, file: str) -> list[Declared]:
    """Return the ranges that a file declares; none for a file of another kind.

    Raises ``ValueError`` if it cannot be parsed.
    """
    try:
        specifiers = dict.fromkeys(_specifiers(text, file))
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(str(error)) from None
    if not specifiers and (malformed := _MALFORMED.search(text)) and _is_list(file):
        raise MalformedRequirement(f"{malformed[0].strip()!r} is not a valid requirement")
    lines = {  # for each version in a line that names vllm, the first such line
        version: number
        for number, line in reversed(list(enumerate(text.splitlines(), 1)))
        if specifiers and "vllm" in line.lower()
        for version in _NUMBER.findall(line)
    }
    versions = ((specifier, _NUMBER.search(specifier)) for specifier in specifiers)
    return [
        Declared(specifier, Place(file, lines.get(version[0], 1) if version else 1))
        for specifier, version in versions
    ]


def _specifiers(text: str, file: str) -> Iterator[str]:
    """Yield the version ranges of vLLM in lists of requirements and in Poetry's tables."""
    name = file.rpartition("/")[2]
    todo = deque[object]()
    if name == "pyproject.toml":
        todo.append(parse_toml(text))
    elif name == "setup.cfg":
        # Line by line, because configparser takes quadratic time in the number of errors.
        lines = (line.strip() for line in text.splitlines())
        todo.append(
            [line if line[:4].lower() == "vllm" else line.partition("=")[2] for line in lines]
        )
    elif name == "setup.py":
        todo.append(
            [node.value for node in ast.walk(parsed(text)) if isinstance(node, ast.Constant)]
        )
    elif _is_list(file):
        todo.append([text])
    while todo and len(todo) < MAX_ITEMS:
        item = todo.popleft()
        if isinstance(item, dict):
            poetry = item.get("vllm")
            version = poetry.get("version") if isinstance(poetry, dict) else poetry
            if isinstance(version, str) and (specifier := _poetry(version)) is not None:
                yield specifier
            todo += [value for value in item.values() if isinstance(value, (dict, list))]
        elif isinstance(item, list):
            for entry in item:
                if isinstance(entry, str):
                    yield from _lines(entry)
                elif isinstance(entry, (dict, list)):
                    todo.append(entry)


def parsed(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        return ast.parse(text)


def _is_list(file: str) -> bool:
    """Return whether a file is a list of requirements, or contains one."""
    name = file.rpartition("/")[2]
    is_list = name.endswith((".txt", ".in")) and ("requirements" in file or "constraints" in file)
    return is_list or name == "pyproject.toml"


def _poetry(text: str) -> str | None:
    if match := _CARET.fullmatch(text.strip()):
        version = version_of(match[1])
        assert version is not None
        release = [*version.release, 0, 0]
        upper = f"{release[0] + 1}" if release[0] else f"0.{release[1] + 1}"
        return f">={match[1]},<{upper}"
    return text if text != "*" and specifiers_of(text) is not None else None


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        words = line.partition("#")[0].partition(" --")[0].strip().rstrip("\\").strip()
        if words[:4].lower() == "vllm":
            requirement = requirement_of(words)
            if (
                requirement is not None
                and canonicalize_name(requirement.name) == "vllm"
                and requirement.specifier
            ):
                yield str(requirement.specifier)
