"""The changes of vLLM's Python sources, each with the releases that contain it."""

from __future__ import annotations

import base64
import bisect
import functools
import io
import re
import zipfile
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec
from packaging.version import Version

from ...errors import UsageError
from ...util.codec import built
from ...util.paths import DATA
from ...util.versions import version_of

FILE = DATA / "fixes.zip"
MEMBER = "fixes.json"
NAME = re.compile(r"vllm#(\d{1,7})")
_FIX = re.compile(
    r"(?i)\b(?:hot)?fix|\bbug|revert|regression|crash|\bhang|deadlock|leak|correct|workaround"
)
_REVERT = re.compile(r"^(?:\[[^\]]*\] *)*Revert ")
_TITLED = re.compile(r"\(#(\d+)\)")


@functools.cache
def is_fix(title: str) -> bool:
    """Return whether a title says that something was wrong."""
    return _FIX.search(title) is not None


class Fix(msgspec.Struct, frozen=True, array_like=True):
    """A change that upstream merged, or what a release changed in a module (``number`` 0).

    ``changed``: functions by path below ``vllm/``, or by path in the repository for kernels and
    requirements; ``terms``: identifiers and words of literals in the changed lines that are not in
    title, functions and paths, lower case; ``removed``: digests of lines that it removed, ``DIGEST``
    characters each; ``first``: the number of the first release that contains it, or of all
    releases if none does; ``tests``: upstream's tests that came with a fix, by path and name.
    """

    number: int
    commit: str
    date: str
    title: str
    changed: dict[str, list[str]]
    terms: str
    removed: str
    first: int
    tests: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """``vllm#44483``; empty for what a release changed."""
        return f"vllm#{self.number}" if self.number else ""

    @property
    def files(self) -> list[str]:
        """The paths in the repository of the files that it changed."""
        return [f"vllm/{path}" if is_module(path) else path for path in self.changed]

    @property
    def functions(self) -> frozenset[str]:
        return frozenset(name for names in self.changed.values() for name in names)

    @property
    def is_titled_fix(self) -> bool:
        """Whether the title says that something was wrong."""
        return is_fix(self.title)

    @property
    def reverts(self) -> tuple[int, ...]:
        """The pull requests that it takes back, by its title."""
        numbers = _TITLED.findall(self.title) if _REVERT.match(self.title) else ()
        return tuple(map(int, numbers))


def is_module(path: str) -> bool:
    """Return whether a path in ``Fix.changed`` is that of a module, which lies below ``vllm/``."""
    return path.endswith(".py") and path != "setup.py"


class _Columns(msgspec.Struct, array_like=True):
    """Fixes, field by field: so they need 8 % less space."""

    number: list[int]
    commit: list[str]
    date: list[str]
    title: list[str]
    changed: list[dict[str, list[str]]]
    terms: list[str]
    removed: list[str]
    first: list[int]
    tests: list[tuple[str, ...]]

    @classmethod
    def of(cls, fixes: Sequence[Fix]) -> _Columns:
        return cls(*([getattr(f, name) for f in fixes] for name in Fix.__struct_fields__))

    def fixes(self) -> list[Fix]:
        columns = (getattr(self, name) for name in self.__struct_fields__)
        return [Fix(*values) for values in zip(*columns, strict=True)]


class _Stored(msgspec.Struct):
    until: str
    until_date: str
    releases: list[str]
    dates: list[str]
    fixes: _Columns
    differences: _Columns


class FixIndex(msgspec.Struct):
    """Fixes in the order in which they were merged.

    ``releases`` and ``dates``: the known releases, oldest first, and the day on which the history
    reached each; ``until``: the commit up to which the history was read; ``differences``: what the
    releases after that changed in each module, without title and pull request.
    """

    until: str = ""
    until_date: str = ""
    releases: list[str] = []
    dates: list[str] = []
    fixes: list[Fix] = []
    differences: list[Fix] = []

    @classmethod
    def load(cls, path: Path = FILE) -> FixIndex:
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
            stored = msgspec.json.decode(archive.read(MEMBER), type=built(_Stored))
        own = stored.until, stored.until_date, stored.releases, stored.dates
        return cls(*own, stored.fixes.fixes(), stored.differences.fixes())

    def content(self) -> bytes:
        """Return the index as a file. Equal indices give equal bytes."""
        own = self.until, self.until_date, self.releases, self.dates
        stored = _Stored(*own, _Columns.of(self.fixes), _Columns.of(self.differences))
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            member = zipfile.ZipInfo(MEMBER, (1980, 1, 1, 0, 0, 0))
            archive.writestr(member, msgspec.json.encode(stored), zipfile.ZIP_LZMA)
        return buffer.getvalue()

    def find(self, name: str) -> Fix:
        """Return the fix ``vllm#N``. Raises ``UsageError``."""
        match = NAME.fullmatch(name)
        number = int(match[1]) if match else 0
        for fix in self.fixes:
            if fix.number == number:
                return fix
        raise UsageError(
            f"{name}: not among the {len(self.fixes)} changes of vLLM until {self.until_date}; a "
            "change has the form vllm#44483"
        )

    def changes_of(self, path: str, function: str = "") -> list[Fix]:
        """Return the changes of a module, ``v1/core/sched/scheduler.py``, or of one function in it,
        in the order of releases."""
        changes = [change for change in (*self.fixes, *self.differences) if path in change.changed]
        if function:
            changes = [change for change in changes if function in change.changed[path]]
        return sorted(changes, key=lambda change: change.first)

    def first_release(self, fix: Fix) -> str | None:
        """Return the first known release that contains a fix; None if it is in none yet."""
        return self.releases[fix.first] if fix.first < len(self.releases) else None

    def release_number(self, version: str) -> int | None:
        """Return the number of a release, or for a build between releases that of the last one
        before it; None for a version that says nothing, such as 0.1.dev5239."""
        wanted = version_of(version.partition("+")[0])
        if wanted is None or not self.releases or wanted < Version(self.releases[0]):
            return None
        return bisect.bisect_right([Version(release) for release in self.releases], wanted) - 1

    def position_of_commit(self, version: str) -> int | None:
        """Return the position of the commit that a development version names (``+gb6a6e7a52``)."""
        match = re.search(r"\+g([0-9a-f]{7,9})", version)
        if match is None:
            return None
        hashes = (
            number for number, fix in enumerate(self.fixes) if fix.commit.startswith(match[1])
        )
        return next(hashes, None)

    def lacking(self, version: str) -> Collection[int]:
        """Return the positions of the fixes that a version lacks; none for an unknown version."""
        position = self.position_of_commit(version)
        if position is not None:
            return range(position + 1, len(self.fixes))
        number = self.release_number(version)
        if number is None:
            return ()
        return {at for at, fix in enumerate(self.fixes) if fix.first > number}

    def later_differences(self, version: str) -> list[int]:
        """Return the positions of the differences that releases after a version made."""
        number = self.release_number(version)
        if number is None:  # a commit: all of the history is before the differences
            number = -1 if self.position_of_commit(version) is not None else len(self.releases)
        return [at for at, change in enumerate(self.differences) if change.first > number]

    def day_of(self, version: str) -> str:
        """Return the day until which a version has upstream's changes; empty if it is unknown."""
        position = self.position_of_commit(version)
        if position is not None:
            return self.fixes[position].date
        number = self.release_number(version)
        return "" if number is None else self.dates[number]

    def reverted_by(self, fix: Fix) -> Fix | None:
        """Return the change that took a fix back."""
        reverts = (other for other in self.fixes if "Revert " in other.title)
        return next((other for other in reverts if fix.number in other.reverts), None)


@functools.cache
def fix_index() -> FixIndex:
    """Return the index that this package has."""
    return FixIndex.load()


DIGEST = 3
MIN_LINE = 8
"""Characters of a line from which it says something."""


def digest(line: str) -> str:
    """Return a few characters that stand for a line of code, without its indentation."""
    return base64.b64encode(zlib.crc32(line.strip().encode()).to_bytes(4, "big"))[:DIGEST].decode()
