"""Read lists of packages: requirements, `pip freeze`, `pip list`, lock files, SBOMs; other files that
name packages become such lists first (``project_files``)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from packaging.markers import Marker
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename

from ...environments.installed import VLLM, Package, package
from ...errors import UsageError
from ...util.documents import parse_json, parse_toml
from ...util.files import read_bounded
from ...util.validation import format_value
from ...util.versions import is_version, marker_holds, requirement_of
from .matching import Inventory
from .project_files import requirements_in

MAX_BYTES = 128 * 1024 * 1024
MAX_INCLUDED = 1024 * 1024
MAX_INCLUDES = 20
_KNOWN = (
    "requirements.txt, `pip freeze`, `pip list`, `pip inspect`, `pip install --report`, `conda list`, uv.lock, pylock.toml, poetry.lock, "
    "pdm.lock, Pipfile.lock, pyproject.toml, environment.yml, vLLM's `collect_env`, a Dockerfile or script that installs vLLM or names its image, "
    "a CycloneDX, SPDX or Syft SBOM"
)
_LISTS = ("package", "packages", "artifacts", "installed", "install", "@graph", "components")
"""Of uv.lock and poetry.lock; of pylock.toml and SPDX 2; of Syft; of `pip inspect`; of `pip install
--report`; of SPDX 3; of CycloneDX."""
_VERSIONS = ("version", "versionInfo", "software_packageVersion")
_PYTHONS = tuple(f"3.{minor}" for minor in range(8, 16))
_ADDRESS = re.compile(r"[A-Za-z0-9_.+-]{0,20}(?:://|/)|\.")
_INCLUDE = re.compile(r"(?:-r|--requirement|(?P<constraints>-c|--constraint))[\s=]*")
_EGG = re.compile(r"[#&]egg=([A-Za-z0-9._-]{1,100})")
_CHECKOUT = re.compile(
    rf"(?:^|[\s/:])({'|'.join(VLLM)})(?:\.git)?/?(?:\[[\w,.-]{{0,200}}\])?(?:@[^#\s]{{0,200}})?(?:#\S{{0,200}})?$"
)
"""The end of an address of vLLM's repository, or of a folder with its name."""
_EDITABLE = re.compile(r"# Editable\b.{0,100}\(([A-Za-z0-9._-]{1,100}==[^\s()]{1,100})\)\s*")
"""The comment in which `pip freeze` names an editable install that has no address."""
_NAMED = re.compile(r'"?name"?\s*[=:]\s*"([^"\n]{1,100})"')


def read_list(path: Path) -> Inventory:
    """Return the packages that a file lists.

    Raises ``UsageError`` for a file that is not a list of packages.
    """
    return parse_list(read_bounded(path, MAX_BYTES, what="a list of packages"), str(path), path)


def parse_list(content: bytes, source: str, path: Path | None = None) -> Inventory:
    """Return the packages that ``content`` lists.

    Lines `-r FILE` are resolved relative to its file ``path``.
    """
    if len(content) > MAX_BYTES:
        raise UsageError(
            f"{source}: larger than {MAX_BYTES} bytes, the limit for a list of packages"
        )
    try:
        text = content.decode("utf-8-sig")
        requirements = requirements_in(text, source)
        document = _document(text, path) if requirements is None else None
    except UnicodeDecodeError:
        raise UsageError(
            f"{source}: not text. Allowed are {_KNOWN}; `vllm-regress audit --env PATH` reads an interpreter"
        ) from None
    except ValueError as error:
        raise UsageError(f"{source}: not valid: {error}. Allowed are {_KNOWN}") from None
    reader = _LineReader(source, path, constraints=_LineReader(source, path))
    if requirements is not None:
        packages = [p for line, one in requirements for p in reader.read(one, source, path, line)]
    elif document is None:
        packages = [*reader.read(text, source, path), *reader.constrained()]
    else:
        lines = _lines_of_names(text)
        packages = [
            listed
            for name, version in _entries(document)
            if (listed := package(name, version, path, lines.get(canonicalize_name(name), 1)))
        ]
    inventory = Inventory(
        source,
        tuple(dict.fromkeys(packages)),
        reader.unpinned,
        unread=tuple(reader.unread),
        left_out=tuple(reader.left_out),
        ranges=reader.ranges,
    )
    if not inventory.packages and not inventory.unpinned:
        # Unreadable lines are counted but not shown: the file may be any file.
        count = len(inventory.unread)
        unread = f" ({count} of its lines are not requirements)" if count else ""
        raise UsageError(
            f"{source}: names no package{unread}, so there is nothing to check. Allowed are {_KNOWN}"
        )
    return inventory


def _document(text: str, path: Path | None) -> Any:
    """Parse JSON or TOML. Return None for a list with one requirement per line."""
    if text.lstrip()[:1] == "{" or re.match(r"\s*\[\s*[{\]]", text):
        return parse_json(text)
    if re.search(r"^\[\[packages?\]\]", text, re.M) or (
        path is not None and path.suffix in (".toml", ".lock")
    ):
        return parse_toml(text)
    return None


def _lines_of_names(text: str) -> dict[str, int]:
    """Return the line in which each name first appears."""
    lines: dict[str, int] = {}
    at, line = 0, 1
    for match in _NAMED.finditer(text):
        line += text.count("\n", at, match.start())
        at = match.start()
        lines.setdefault(canonicalize_name(match[1]), line)
    return lines


def _entries(document: Any) -> Iterator[tuple[str, str]]:
    """Yield name and version of every package in a document of a known format."""
    tables = document if isinstance(document, dict) else {}
    lists = [document, *map(tables.get, _LISTS)]
    for entries in lists:
        for entry in _tables(entries):
            yield from _pairs([entry if "name" in entry else entry.get("metadata")])
            lists.append(entry.get("components"))  # of CycloneDX
    for key in ("default", "develop"):  # Pipfile.lock
        table = tables.get(key)
        for name, entry in table.items() if isinstance(table, dict) else ():
            if isinstance(entry, dict):
                yield name, str(entry.get("version", "")).removeprefix("==")


def _pairs(entries: object) -> Iterator[tuple[str, str]]:
    """Yield name and version of every Python package.

    A package of another ecosystem is recognized by its package URL.
    """
    for entry in _tables(entries):
        version = next(filter(None, map(entry.get, _VERSIONS)), None)
        if not may_apply(entry.get("marker")):
            continue
        references = _tables(entry.get("externalRefs"))
        candidates = [
            entry.get("purl"),
            entry.get("software_packageUrl"),
            *(r.get("referenceLocator") for r in references if r.get("referenceType") == "purl"),
        ]
        purls = [purl for purl in candidates if isinstance(purl, str)]
        pypi = [purl for purl in purls if purl.lower().startswith("pkg:pypi/")]
        if pypi:
            name, _, purl_version = re.split(r"[?#]", pypi[0][len("pkg:pypi/") :])[0].partition("@")
            yield unquote(name), unquote(purl_version) or str(version or "")
        elif not purls and isinstance(entry.get("name"), str) and isinstance(version, str):
            yield entry["name"], version


def _tables(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


class _LineReader:
    """Reads a list with one requirement per line, and the files that it includes: below its folder,
    each once.

    ``unpinned``: lines without a version, by package. ``constraints``: reads the files of ``-c``;
    None if it is this one.
    ``left_out``: constraints that were not read, and why.
    """

    def __init__(
        self, source: str, path: Path | None, constraints: _LineReader | None = None
    ) -> None:
        self.unpinned: dict[str, str] = {}
        self.ranges: dict[str, str] = {}
        self.unread: list[str] = []
        self.left_out: list[str] = []
        self._source = source
        own = (path or Path()).resolve()
        self._root, self._seen = own.parent, {own}
        self._constraints = constraints
        self._constraining: list[Package] = []

    def read(self, text: str, source: str, path: Path | None, first: int = 1) -> Iterator[Package]:
        """Yield the packages in ``text``, the content of the file ``path`` from the line ``first``
        on."""
        for number, line in _logical_lines(text, first):
            if include := _INCLUDE.match(line):
                if include["constraints"] and self._constraints is not None:
                    # Constraints name no packages of their own, so that it is enough to note a
                    # file that cannot be read.
                    try:
                        self._constraining += self._constraints._included(line, source, path)
                    except UsageError as error:
                        self.left_out.append(f"constraints were not read: {error}")
                else:
                    yield from self._included(line, source, path)
                continue
            if line.startswith("-"):  # an option, or the line below the titles of `pip list`
                if line.startswith(("-e", "--editable")) and (name := _name_in_address(line)):
                    self.unpinned.setdefault(name, format_value(line))
                continue
            parsed = _parse_line(line)
            if parsed is None:
                self.unread.append(f"{source}, line {number}")
            elif pinned := package(*parsed, path, number):
                yield pinned
            elif package(parsed[0], "0"):
                name = canonicalize_name(parsed[0])
                self.unpinned.setdefault(name, format_value(line))
                requirement = requirement_of(line)
                if requirement is not None and requirement.url is None:
                    self.ranges.setdefault(name, str(requirement.specifier))

    def constrained(self) -> Iterator[Package]:
        """Yield the versions that constraints give to packages that the list names without one.

        Call it after ``read``.
        """
        yield from (pin for pin in self._constraining if pin.name in self.unpinned)

    def _included(self, line: str, source: str, path: Path | None) -> Iterator[Package]:
        """Yield the packages in the file that a line of the file ``path`` includes."""
        words = _INCLUDE.sub("", line).split()
        if path is None or not words:
            raise UsageError(
                f"{source}: {format_value(line)} refers to a file that cannot be found. Give the list as a file, or the output of `pip freeze`"
            )
        try:
            included = (path.parent / words[0]).resolve()
        except (OSError, ValueError, RuntimeError):
            raise UsageError(f"{source}: {format_value(line)}: not a valid file name") from None
        if not included.is_relative_to(self._root):
            raise UsageError(
                f"{source}: {format_value(line)}: leads outside {self._root}: only files below the folder of the list are read"
            )
        if included in self._seen:
            return
        if len(self._seen) > MAX_INCLUDES:
            raise UsageError(f"{self._source}: includes more than {MAX_INCLUDES} files")
        self._seen.add(included)
        content = read_bounded(included, MAX_INCLUDED, what="an included list")
        yield from self.read(content.decode("utf-8", errors="replace"), str(included), included)


def _logical_lines(text: str, first: int) -> Iterator[tuple[int, str]]:
    """Yield the logical lines of a requirements file with their line numbers: continuations joined,
    comments and trailing options removed.

    A comment of `pip freeze` that names an editable install becomes its requirement.
    """
    parts: list[str] = []
    start = first
    for number, line in enumerate(text.splitlines(), start=first):
        start = start if parts else number
        parts.append(line.rstrip("\\"))
        if line.endswith("\\"):
            continue
        editable = _EDITABLE.fullmatch(line)
        joined = editable[1] if editable else re.sub(r"(^|\s)#.*", "", " ".join(parts)).strip()
        parts = []
        if not joined.startswith("-"):
            joined = re.split(r"\s--?[a-z]", joined)[0].strip()
        if joined:
            yield start, joined


def _parse_line(line: str) -> tuple[str, str] | None:
    """Return name and version (empty if unpinned) of a line, ``("", "")`` if it does not apply on
    Linux, None if it is not a requirement."""
    words = line.split()
    if len(words) > 1 and is_version(words[1]):  # a row of `pip list`
        return words[0], words[1]
    if words[:2] == ["Package", "Version"]:
        return "", ""
    address, _, marker = map(str.strip, line.partition(";"))
    is_file = address.endswith((".whl", ".tar.gz")) and "@" not in address
    requirement = None if is_file else requirement_of(line)
    if requirement is None:
        if not is_file and not _ADDRESS.match(address):
            return None
        name, version = _distribution(address)
        return (name or _name_in_address(address), version) if may_apply(marker) else ("", "")
    if not may_apply(requirement.marker):
        return "", ""
    if requirement.url is not None:
        return requirement.name, _distribution(requirement.url)[1]
    pins = (pin for pin in requirement.specifier if pin.operator in ("==", "==="))
    return requirement.name, next((p.version for p in pins if "*" not in p.version), "")


def _name_in_address(line: str) -> str:
    """Return the package that a line with a URL or path names after ``#egg=``; vLLM also by the
    name of its repository."""
    match = _EGG.search(line) or _CHECKOUT.search(line)
    return canonicalize_name(match[1]) if match else ""


def _distribution(address: str) -> tuple[str, str]:
    """Return name and version in the file name of a wheel or a source distribution."""
    file = unquote(re.split(r"[?#]", address)[0]).rpartition("/")[2]
    try:
        name, version = (
            parse_wheel_filename(file)[:2] if file.endswith(".whl") else parse_sdist_filename(file)
        )
    except ValueError:
        return "", ""
    return name, str(version)


def may_apply(marker: object) -> bool:
    """Return whether the marker holds on Linux for any Python: the audit does not know who will
    install the list."""
    if not isinstance(marker, str | Marker):
        return True
    linux = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "extra": ""}
    return any(
        marker_holds(
            marker, {**linux, "python_version": version, "python_full_version": f"{version}.0"}
        )
        is not False
        for version in _PYTHONS
    )
