"""What lists of packages name: requirements and `pip freeze`, `pip list`, uv.lock, pylock.toml, poetry.lock, Pipfile.lock, SBOMs in JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion

from ..environments.installed import Package, package
from ..errors import UsageError
from ..util.documents import parse_json, parse_toml
from ..util.files import read_bounded
from ..util.validation import shown
from ..util.versions import is_version, marker_holds, requirement_of
from .inventory import Inventory

MAX_BYTES = 128 * 1024 * 1024
MAX_INCLUDED = 1024 * 1024
MAX_INCLUDES = 20
_KNOWN = "requirements.txt, `pip freeze`, `pip list`, uv.lock, pylock.toml, poetry.lock, Pipfile.lock, a CycloneDX, SPDX or Syft SBOM in JSON"
_PYTHONS = tuple(f"3.{minor}" for minor in range(8, 16))
_ADDRESS = re.compile(r"[A-Za-z0-9_.+-]{0,20}(?:://|/)|\.")
_NAMED = re.compile(r'"?name"?\s*[=:]\s*"([^"\n]{1,100})"')


def read_list(path: Path) -> Inventory:
    """The packages that a file names. Raises ``UsageError`` for a file that is no list of packages."""
    return parse_list(read_bounded(path, MAX_BYTES, what="a list of packages"), str(path), path)


def parse_list(content: bytes, source: str, path: Path | None = None) -> Inventory:
    """The packages that ``content`` names; ``path``: the file it came from, beside which lines `-r FILE` are looked for."""
    if len(content) > MAX_BYTES:
        raise UsageError(f"{source}: larger than {MAX_BYTES} bytes, which is the limit of a list of packages")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(
            f"{source}: is not text. Allowed are {_KNOWN}; an interpreter is looked at with --python"
        ) from None
    try:
        document = _document(text, path)
    except ValueError as error:
        raise UsageError(f"{source}: not valid: {error}. Allowed are {_KNOWN}") from None
    if document is None:
        return _of_lines(text, source, path)
    lines = _lines_of_names(text)
    named = (
        package(name, version, path, lines.get(canonicalize_name(name), 1)) for name, version in _entries(document)
    )
    return _proving(Inventory(source, tuple(dict.fromkeys(each for each in named if each is not None))))


def _of_lines(text: str, source: str, path: Path | None) -> Inventory:
    found = _Lines(source, path)
    packages = tuple(dict.fromkeys(found.read(text, source, path)))
    return _proving(Inventory(source, packages, MappingProxyType(found.unpinned), unread=tuple(found.unread)))


def _proving(inventory: Inventory) -> Inventory:
    """The inventory, unless it has nothing in it. Lines that could not be read are counted, not shown: they may be of any file."""
    if not inventory.packages and not inventory.unpinned:
        unread = f" ({len(inventory.unread)} lines of it are no requirements)" if inventory.unread else ""
        raise UsageError(f"{inventory.source}: names no package{unread}: that proves nothing. Allowed are {_KNOWN}")
    return inventory


def _document(text: str, path: Path | None) -> Any:
    """The parsed JSON or TOML document; None for lines."""
    if text.lstrip()[:1] == "{" or re.match(r"\s*\[\s*[{\]]", text):
        return parse_json(text)
    if re.search(r"^\[\[packages?\]\]", text, re.M) or (path is not None and path.suffix in (".toml", ".lock")):
        return parse_toml(text)
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


class _Lines:
    """Reads the lines of a list and of the files that it includes. ``unpinned``: packages without a version, and their line."""

    def __init__(self, source: str, path: Path | None) -> None:
        self.unpinned: dict[str, str] = {}
        self.unread: list[str] = []
        self._source = source
        self._root = path.resolve().parent if path is not None else None
        self._seen = {path.resolve()} if path is not None else set()

    def read(self, text: str, source: str, path: Path | None) -> Iterator[Package]:
        """The packages of ``text``, which is of the file ``path``."""
        for number, line in _logical_lines(text):
            if line.startswith(("-r", "--requirement")):
                yield from self._included(line, source, path)
                continue
            if line.startswith("-"):  # an option, or the line below the titles of `pip list`
                if egg := re.search(r"[#&]egg=([A-Za-z0-9._-]{1,100})", line):
                    self.unpinned.setdefault(canonicalize_name(egg[1]), shown(line))
                continue
            read = _line(line)
            if read is None:
                self.unread.append(f"{source}, line {number}")
                continue
            name, version = read
            found = package(name, version, path, number) if version else None
            if found is not None:
                yield found
            elif package(name, "0") is not None:
                self.unpinned.setdefault(canonicalize_name(name), shown(line))

    def _included(self, line: str, source: str, path: Path | None) -> Iterator[Package]:
        words = line.removeprefix("--requirement").removeprefix("-r").lstrip("= ").split()
        if path is None or self._root is None or not words:
            raise UsageError(
                f"{source}: {shown(line)} names a file that is not at hand. Give the list as a file, or what `pip freeze` prints"
            )
        try:
            named = (path.parent / words[0]).resolve()
        except (OSError, ValueError, RuntimeError):
            raise UsageError(f"{source}: {shown(line)}: is no file's name") from None
        if not named.is_relative_to(self._root):
            raise UsageError(
                f"{source}: {shown(line)}: leads out of {self._root}: only files below the list's own folder are read"
            )
        if named in self._seen:
            return
        if len(self._seen) > MAX_INCLUDES:
            raise UsageError(f"{self._source}: more than {MAX_INCLUDES} files are included")
        self._seen.add(named)
        text = read_bounded(named, MAX_INCLUDED, what="an included list").decode("utf-8", errors="replace")
        yield from self.read(text, str(named), named)


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


def _line(line: str) -> tuple[str, str] | None:
    """Name and version of one line; the version is empty where it says none. ``("", "")``: it does not apply on Linux; None: no requirement."""
    words = line.split()
    if len(words) > 1 and is_version(words[1]):  # a row of `pip list`
        return words[0], words[1]
    if words[:2] == ["Package", "Version"]:
        return "", ""
    if line.partition(";")[0].strip().endswith(".whl"):
        return _wheel(line.partition(";")[0].strip())
    wanted = requirement_of(line)
    if wanted is None:
        return ("", "") if _ADDRESS.match(line) else None  # an address or a path names no version
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
    except (InvalidWheelFilename, InvalidVersion, ValueError):
        return "", ""
    return name, str(version)


def _may_apply(marker: object, pythons: Iterable[str] = _PYTHONS) -> bool:
    """The marker holds on Linux for some Python: a list is audited for whoever installs it."""
    if not isinstance(marker, str):
        return True
    linux = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    here = ({**linux, "python_version": each, "python_full_version": f"{each}.0", "extra": ""} for each in pythons)
    return any(marker_holds(marker, each) is not False for each in here)
