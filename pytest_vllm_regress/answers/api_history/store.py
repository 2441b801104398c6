"""The history of vLLM's API as one file: a table of changes for each section, and for the symbols
of each package."""

from __future__ import annotations

import bisect
import functools
import io
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, Self

from ...util.paths import DATA
from .definitions import is_class

FILE = DATA / "api_history.zip"
SECTIONS = (
    "modules",
    "options",
    "environment",
    "routes",
    "metrics",
    "parsers",
    "plugins",
    "architectures",
    "requirements",
    "deprecations",
)
"""Parts of an API besides the symbols, each a table of names with a short text."""
BRIEF = re.compile(
    r"vllm\.(?:model_executor\.(?:models|layers|kernels)|models|kernels|v1\.attention|distributed\.kv_transfer)\b.*"
)
"""Packages with the inside of models and kernels: of these, private names, constants and attributes
that methods assign are left out."""
MOVES = "moves"
"""The table of the places to which symbols moved: ``module:name`` of both."""
Timeline = list[Any]
"""Number of a release and the definition from then on, in turn:

``[3, "def()", 9, None]``; None means that the name is gone.
"""
Table = MutableMapping[str, Timeline]


class History:
    """Releases of vLLM, oldest first, and what each has.

    A member of the file is read when it is first used: most questions need few of them, and all
    together take a second.
    """

    def __init__(
        self, releases: Iterable[str] = (), archive: zipfile.ZipFile | None = None
    ) -> None:
        self.releases = list(releases)
        self._archive = archive
        self._members: dict[str, Any] = {}
        self._classes: dict[str, dict[tuple[str, str], Timeline]] = {}

    @classmethod
    def load(cls, path: Path = FILE) -> Self:
        archive = zipfile.ZipFile(io.BytesIO(path.read_bytes()))
        return cls(json.loads(archive.read("index.json"))["releases"], archive)

    def table(self, section: str) -> Table:
        """Return the changes of a section: one of ``SECTIONS``, or ``MOVES``."""
        table: Table = self._member(f"{section}.json")
        return table

    def symbols(self, module: str) -> Table:
        """Return the changes of a module's symbols by qualified name; empty for an unknown module."""
        table: Table = self._member(member_of(module)).get(module, {})
        return table

    def classes_in(self, member: str) -> dict[tuple[str, str], Timeline]:
        """Return the changes of the classes in a member of the file (see ``member_of``), by module
        and name. They are picked out once for all releases: that takes long."""
        if member not in self._classes:
            self._classes[member] = {
                (module, symbol): timeline
                for module, table in self._member(member).items()
                for symbol, timeline in table.items()
                if "." not in symbol and any(is_class(text or "") for text in timeline[1::2])
            }
        return self._classes[member]

    def entry(self, section: str, name: str, release: int) -> str | None:
        """Return the text of a name in a section; None if the release does not have it."""
        return definition_at(self.table(section).get(name, []), release)

    def definition(self, module: str, name: str, release: int) -> str | None:
        """Return the definition of a symbol; None if the release does not have it."""
        return definition_at(self.symbols(module).get(name, []), release)

    def _member(self, name: str) -> Any:
        if name not in self._members:
            content = b"{}"  # of a package that no release has
            if self._archive is not None and name in self._archive.namelist():
                content = self._archive.read(name)
            self._members[name] = json.loads(content)
        return self._members[name]


@functools.cache
def history() -> History:
    """Return the history that this package has."""
    return History.load()


@functools.cache
def member_of(module: str) -> str:
    """Return the member of the file with a module's symbols, one for each package, at most three
    names deep: smaller ones compress badly, larger ones take long to read."""
    return f"symbols/{'.'.join(module.split('.')[:-1][:3])}.json"


def definition_at(timeline: Timeline, release: int) -> str | None:
    """Return the definition in that release; None if the name does not exist there."""
    count = bisect.bisect_right(timeline[::2], release)
    definition: str | None = timeline[2 * count - 1] if count else None
    return definition


def definitions_at(table: Table, release: int) -> dict[str, str]:
    """Return the names that exist in that release with their definitions."""
    texts = ((name, definition_at(timeline, release)) for name, timeline in table.items())
    return {name: text for name, text in texts if text is not None}


def intervals(timeline: Timeline, count: int) -> Iterator[tuple[int, int, str]]:
    """Yield first release, release after the last, and definition of each period in which the name
    exists, of ``count`` releases."""
    ends = [*timeline[2::2], count]
    for start, definition, end in zip(timeline[::2], timeline[1::2], ends, strict=False):
        if definition is not None:
            yield start, end, definition
