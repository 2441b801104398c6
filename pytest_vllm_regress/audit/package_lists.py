"""What lists of packages name: requirements and `pip freeze`, `pip list`, uv.lock, pylock.toml, poetry.lock, Pipfile.lock, SBOMs in JSON."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

from packaging.markers import Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from ..environments.installed import Package, package
from ..errors import UsageError
from ..util.validation import shown
from .inventory import Inventory

MAX_BYTES = 128 * 1024 * 1024
MAX_INCLUDES = 20
_KNOWN = "requirements.txt, `pip freeze`, `pip list`, uv.lock, pylock.toml, poetry.lock, Pipfile.lock, a CycloneDX, SPDX or Syft SBOM in JSON"
_PYTHONS = tuple(f"3.{minor}" for minor in range(8, 16))
_NAMED = re.compile(r'"?name"?\s*[=:]\s*"([^"\n]{1,100})"')


def read_list(path: Path) -> Inventory:
    """The packages that a file names. Raises ``UsageError`` for a file that is no list of packages."""
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    return parse_list(content, str(path), path)


def parse_list(content: bytes, source: str, path: Path | None = None) -> Inventory:
    """The packages that ``content`` names; ``path``: the file it came from, beside which lines `-r FILE` are looked for."""
    if len(content) > MAX_BYTES:
        raise UsageError(f"{source}: larger than {MAX_BYTES} bytes, which is the limit of a list of packages")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{source}: is not text, and no Python interpreter. Allowed are {_KNOWN}") from None
    unpinned: dict[str, str] = {}
    try:
        document = _document(text, path)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source}: not valid: {error}. Allowed are {_KNOWN}") from None
    if document is None:
        found = list(_from_lines(text, source, path, unpinned, [MAX_INCLUDES]))
    else:
        lines = _lines_of_names(text)
        named = (
            package(name, version, path, lines.get(canonicalize_name(name), 1)) for name, version in _entries(document)
        )
        found = [each for each in named if each is not None]
    if not found and not unpinned:
        raise UsageError(f"{source}: names no package: that proves nothing. Allowed are {_KNOWN}")
    return Inventory(source, tuple(dict.fromkeys(found)), MappingProxyType(unpinned))


def _document(text: str, path: Path | None) -> Any:
    """The parsed JSON or TOML document; None for lines."""
    if text.lstrip()[:1] == "{" or re.match(r"\s*\[\s*[{\]]", text):
        return json.loads(text)
    if re.search(r"^\[\[packages?\]\]", text, re.M) or (path is not None and path.suffix in (".toml", ".lock")):
        return tomllib.loads(text)
    return None


def _lines_of_names(text: str) -> dict[str, int]:
    """The line in which a document first gives each name."""
    lines: dict[str, int] = {}
    at, line = 0, 1
    for match in _NAMED.finditer(text):
        line += text.count("\n", at, match.start())
        at = match.start()
        lines.setdefault(canonicalize_name(match[1]), line)
    return lines


def _entries(document: Any) -> Iterator[tuple[str, str]]:
    """Name and version of everything that the known shapes of documents name."""
    if isinstance(document, list):  # pip list, conda list
        yield from _pairs(document)
    if not isinstance(document, dict):
        return
    for key in ("package", "packages"):  # uv.lock and poetry.lock; pylock.toml and SPDX 2
        yield from _pairs(document.get(key))
    yield from _pairs(document.get("artifacts"))  # Syft
    for key in ("installed", "install"):  # pip inspect, pip install --report
        yield from _pairs([each.get("metadata") for each in _tables(document.get(key))])
    for each in _tables(document.get("@graph")):  # SPDX 3
        if str(each.get("type", "")).endswith("Package"):
            yield from _pairs(
                [
                    {
                        "name": each.get("name"),
                        "version": each.get("software_packageVersion"),
                        "purl": each.get("software_packageUrl"),
                    }
                ]
            )
    todo = [document]  # CycloneDX: components hold components
    while todo:
        components = _tables(todo.pop().get("components"))
        yield from _pairs(components)
        todo += components
    for key in ("default", "develop"):  # Pipfile.lock
        table = document.get(key)
        for name, each in table.items() if isinstance(table, dict) else ():
            if isinstance(each, dict):
                yield name, str(each.get("version", "")).removeprefix("==")


def _pairs(entries: object) -> Iterator[tuple[str, str]]:
    for each in _tables(entries):
        version = each.get("version", each.get("versionInfo"))
        if not _may_apply(each.get("marker")):
            continue
        purls = [
            each.get("purl"),
            *(r.get("referenceLocator") for r in _tables(each.get("externalRefs")) if r.get("referenceType") == "purl"),
        ]
        given = [purl for purl in purls if isinstance(purl, str)]
        python = [purl for purl in given if purl.lower().startswith("pkg:pypi/")]
        if python:
            name, _, stated = re.split(r"[?#]", python[0][len("pkg:pypi/") :])[0].partition("@")
            yield unquote(name), unquote(stated) or str(version or "")
        elif (
            not given and isinstance(each.get("name"), str) and isinstance(version, str)
        ):  # a package of another ecosystem says so
            yield each["name"], version


def _tables(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _from_lines(
    text: str, source: str, path: Path | None, unpinned: dict[str, str], includes: list[int]
) -> Iterator[Package]:
    for number, line in _logical_lines(text):
        if line.startswith(("-r", "--requirement")):
            yield from _included(line, source, path, unpinned, includes)
            continue
        if line.startswith("-"):  # an option, or the line below the titles of `pip list`
            if egg := re.search(r"[#&]egg=([\w.-]+)", line):
                unpinned.setdefault(canonicalize_name(egg[1]), line[:200])
            continue
        name, version = _line(line, source, number)
        found = package(name, version, path, number) if version else None
        if found is not None:
            yield found
        elif name:
            unpinned.setdefault(canonicalize_name(name), line[:200])


def _included(
    line: str, source: str, path: Path | None, unpinned: dict[str, str], includes: list[int]
) -> Iterator[Package]:
    words = line.removeprefix("--requirement").removeprefix("-r").lstrip("= ").split()
    if path is None or not words:
        raise UsageError(
            f"{source}: {shown(line)} names a file that is not at hand. Give the list as a file, or what `pip freeze` prints"
        )
    includes[0] -= 1
    if includes[0] < 0:
        raise UsageError(f"{source}: more than {MAX_INCLUDES} files are included")
    named = path.parent / words[0]
    try:
        with named.open("rb") as stream:
            text = stream.read(MAX_BYTES).decode("utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{source}: {shown(line)}: cannot be read: {error.strerror}") from None
    yield from _from_lines(text, str(named), named, unpinned, includes)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines of a requirements file with the number of their first: continued ones joined, comments and options behind them cut off."""
    parts: list[str] = []
    start = 1
    for number, line in enumerate(text.splitlines(), start=1):
        start = start if parts else number
        parts.append(line.rstrip("\\"))
        if line.endswith("\\"):
            continue
        whole = re.sub(r"(^|\s)#.*", "", " ".join(parts)).strip()
        parts = []
        if whole:
            yield start, whole if whole.startswith("-") else re.split(r"\s--?[a-z]", whole)[0].strip()


def _line(line: str, source: str, number: int) -> tuple[str, str]:
    """Name and version of one line; the version is empty where it says none. ``("", "")`` where it does not apply on Linux."""
    words = line.split()
    if len(words) > 1 and _is_version(words[1]):  # a row of `pip list`
        return words[0], words[1]
    if words[:2] == ["Package", "Version"]:
        return "", ""
    if line.partition(";")[0].strip().endswith(".whl"):
        return _wheel(line.partition(";")[0].strip())
    try:
        wanted = Requirement(line)
    except InvalidRequirement:
        if re.match(r"[\w.+-]*(://|/)|\.", line):  # an address or a path that names no version
            return "", ""
        raise UsageError(
            f"{source}: line {number}: {shown(line)} is no requirement and names no package. Allowed are {_KNOWN}"
        ) from None
    if wanted.marker is not None and not _may_apply(str(wanted.marker)):
        return "", ""
    if wanted.url is not None:
        named, version = _wheel(wanted.url)
        return wanted.name, version if named else ""
    pins = [each.version for each in wanted.specifier if each.operator in ("==", "===") and "*" not in each.version]
    return wanted.name, pins[0] if pins else ""


def _wheel(address: str) -> tuple[str, str]:
    try:
        name, version, _, _ = parse_wheel_filename(unquote(re.split(r"[?#]", address)[0]).rpartition("/")[2])
    except (InvalidWheelFilename, InvalidVersion):
        return "", ""
    return name, str(version)


def _is_version(word: str) -> bool:
    try:
        Version(word)
    except InvalidVersion:
        return False
    return True


def _may_apply(marker: object, pythons: Iterable[str] = _PYTHONS) -> bool:
    """The marker holds on Linux for some Python: a list is audited for whoever installs it."""
    if not isinstance(marker, str):
        return True
    linux = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    try:
        return any(
            Marker(marker).evaluate({**linux, "python_version": each, "python_full_version": f"{each}.0", "extra": ""})
            for each in pythons
        )
    except (ValueError, UndefinedComparison, UndefinedEnvironmentName):
        return True
