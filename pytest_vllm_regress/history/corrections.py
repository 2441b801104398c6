"""What changed on new releases: verdicts that the case files do not predict, and the edits of case
files that follow, with corrected ranges. Pure, but for reading case files."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ..answers.audit.boundaries import Boundary, boundaries
from ..answers.audit.verdict_table import VerdictTable
from ..cases.loading import MAX_BYTES, with_fixed_evidence, with_range
from ..cases.model import Case, Range
from ..cases.results import Cell, TestResult, group_into_cells
from ..cases.verdict import Verdict
from ..environments.installed import VLLM
from ..errors import CaseFileError
from ..runner.batch import Batch
from ..util.files import read_bounded, write_atomically
from ..util.versions import SEPARATOR, version_of

_UPPER = ("<", "<=")
_BOUNDS = (*_UPPER, ">", "!=")
"""Beginnings of the parts that can be left out to extend a range by an adjacent release."""
ListedReleases = Mapping[str, Sequence[Version]]
"""Stable releases on the index by package, oldest first."""


@dataclass(frozen=True)
class WatchedRelease:
    """A release of vLLM or of a grammar library."""

    package: str
    version: Version

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


@dataclass(frozen=True)
class Look:
    """Cases that run because of a release, and their environment."""

    release: WatchedRelease
    environment: str
    cases: tuple[Case, ...]

    @property
    def batch(self) -> Batch:
        """The same for the runner. No case has a role there: the ranges say what is expected."""
        return Batch(self.environment, self.cases, {})


@dataclass(frozen=True)
class UnexpectedVerdict:
    """A case whose verdict on a release is not the expected one.

    ``by_hand``: why no edit follows; empty if one does, or for INCONCLUSIVE.
    """

    case: Case
    release: WatchedRelease
    environment: str
    device: str
    verdict: Verdict
    reasons: tuple[str, ...]
    by_hand: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--json``."""
        about = {"case": self.case.id, "title": self.case.title, "release": str(self.release)}
        return {**vars(self), **about}


@dataclass(frozen=True)
class RangeEdit:
    """A corrected range in a case file. ``ends``: those that the new releases decide."""

    case: Case
    before: Range
    after: Range
    text: str
    new_text: str
    ends: tuple[Boundary, ...] = ()

    @property
    def corrected_case(self) -> Case:
        """The case with the corrected range."""
        ranges = tuple(
            self.after if affected is self.before else affected for affected in self.case.affected
        )
        return replace(self.case, affected=ranges)

    def diff(self) -> str:
        """Return the edit as a unified diff, with paths below the working directory where possible,
        for ``git apply``."""
        path = os.path.relpath(self.case.path)
        name = (
            str(self.case.path.absolute()).lstrip(os.sep) if path.startswith(os.pardir) else path
        ).replace(os.sep, "/")
        before, after = self.text.splitlines(keepends=True), self.new_text.splitlines(keepends=True)
        return "".join(difflib.unified_diff(before, after, f"a/{name}", f"b/{name}"))

    def write(self) -> None:
        """Write the case file. Raises ``CaseFileError`` if it has changed since it was read."""
        self._replace(self.text, self.new_text)

    def take_back(self) -> None:
        """Undo ``write``, unless the file has changed since."""
        with contextlib.suppress(CaseFileError):
            self._replace(self.new_text, self.text)

    def _replace(self, before: str, after: str) -> None:
        """Write the case file, unless an editor has saved it meanwhile: asked at the last moment,
        because the disk may take long."""

        def check() -> None:
            if _read(self.case.path) != before:
                raise CaseFileError(
                    f"{self.case.path}: has changed during the run, so the edit was not written: start again"
                )

        check()
        write_atomically(self.case.path, after, check=check)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--json``."""
        return {
            "case": self.case.id,
            "package": self.before.package,
            "before": self.before.specifier,
            "after": self.after.specifier,
            "ends": [end.to_json() for end in self.ends],
        }


@dataclass(frozen=True)
class _Verdicts:
    """What the tests of a case showed on a release, as far as that decides about a range.

    ``shown`` None: the tests disagree.
    """

    case: Case
    look: Look
    cell: Cell
    affected: Range | None
    version: Version | None
    shown: bool | None

    @property
    def by_hand(self) -> str:
        if self.affected is None or self.version is None:
            return "several packages decide, so it is not clear which range to correct"
        if all(result.variant is not None for result in self.cell.results if not result.expected):
            return "only a variant is not as expected: correct its [variants.NAME]"
        if self.shown is None:
            return "its tests disagree: a form of the failure may need a [variants.NAME]"
        return ""


def changes_of(
    looks: Sequence[Look], results: Iterable[TestResult]
) -> tuple[UnexpectedVerdict, ...]:
    """Return the unexpected verdicts, in the order of the releases."""
    return tuple(
        UnexpectedVerdict(
            verdicts.case,
            verdicts.look.release,
            cell.environment,
            cell.device,
            cell.verdict,
            tuple(cell.why()),
            "" if cell.verdict is Verdict.INCONCLUSIVE else verdicts.by_hand,
        )
        for verdicts in _verdicts(looks, results)
        if not (cell := verdicts.cell).expected
    )


def edits_of(
    looks: Sequence[Look], results: Iterable[TestResult], listed: ListedReleases
) -> tuple[RangeEdit, ...]:
    """Return the edits of case files after which the verdicts are as expected, at most one for each
    case."""
    seen: dict[tuple[str, Range], dict[Version, set[bool | None]]] = {}
    passing: dict[str, str] = {}
    cases = {case.id: case for look in looks for case in look.cases}
    for verdicts in _verdicts(looks, results):
        case_id, affected, version = verdicts.case.id, verdicts.affected, verdicts.version
        shown, verdict = verdicts.shown, verdicts.cell.verdict
        if affected is None or version is None or verdict is Verdict.NOT_APPLICABLE:
            continue
        if verdict is Verdict.INCONCLUSIVE and shown is not None:
            continue  # only some of its tests say something
        seen.setdefault((case_id, affected), {}).setdefault(version, set()).add(shown)
        if shown is False:
            passing.setdefault(case_id, verdicts.cell.environment)
    edits: dict[str, RangeEdit] = {}
    for (case_id, before), by_version in seen.items():
        clear = {
            version: True in shown
            for version, shown in by_version.items()
            if len(shown) == 1 and None not in shown
        }
        after = corrected(before, [*{*listed.get(before.package, ()), *clear}], clear)
        if after is not None and after != before and case_id not in edits:
            edits[case_id] = _edit(cases[case_id], before, after, passing.get(case_id, ""))
    return tuple(edits.values())


def with_ends(edit: RangeEdit, table: VerdictTable, listed: ListedReleases) -> RangeEdit:
    """Return the edit with the ends of the corrected range that the range before did not have."""

    def ends_of(case: Case) -> dict[tuple[str, str], Boundary]:
        ends = boundaries(case, table, lambda package: listed.get(package, ()))
        return {(end.inside, end.outside): end for end in ends}

    before, after = ends_of(edit.case), ends_of(edit.corrected_case)
    return replace(edit, ends=tuple(after[key] for key in after if key not in before))


def missing_neighbours(edits: Iterable[RangeEdit]) -> Iterator[tuple[WatchedRelease, Case]]:
    """Yield the releases beside new ends that were not run, with the cases to run on them."""
    for edit in edits:
        for end in edit.ends:
            for version in end.missing:
                yield WatchedRelease(end.package, Version(version)), edit.case


def _edit(case: Case, before: Range, after: Range, passing: str) -> RangeEdit:
    """Return the edit of a case file.

    A case that gets its first fixed version gets evidence of it, which a proof needs.
    """
    text = _read(case.path)
    edit = RangeEdit(case, before, after, text, with_range(text, after))
    if not case.evidence.fixed and passing and edit.corrected_case.first_fixed() is not None:
        edit = replace(edit, new_text=with_fixed_evidence(edit.new_text, passing))
    return edit


def _read(path: Path) -> str:
    return read_bounded(path, MAX_BYTES, what="a case file", error=CaseFileError).decode("utf-8")


def _verdicts(looks: Sequence[Look], results: Iterable[TestResult]) -> list[_Verdicts]:
    by_place: dict[tuple[str, str], list[Cell]] = {}
    for cell in group_into_cells(results):
        by_place.setdefault((cell.case_id, cell.environment), []).append(cell)
    return [
        _judge(case, look, cell)
        for look in looks
        for case in look.cases
        for cell in by_place.get((case.id, look.environment), ())
    ]


def _judge(case: Case, look: Look, cell: Cell) -> _Verdicts:
    named = [affected for affected in case.affected if affected.package == look.release.package]
    affected = next(iter(named), case.affected[0] if len(case.affected) == 1 else None)
    version = None if affected is None else _version(affected.package, look, cell)
    # A variant has ranges of its own, and says nothing about those of the case.
    shown = {result.verdict.shown for result in cell.results if result.variant is None} - {None}
    clear = next(iter(shown)) if len(shown) == 1 else None
    return _Verdicts(case, look, cell, affected, version, clear)


def _version(package: str, look: Look, cell: Cell) -> Version | None:
    if package == look.release.package:
        return look.release.version
    versions = cell.results[0].versions
    names = VLLM if package == "vllm" else (package,)
    return next((version_of(versions[name]) for name in names if name in versions), None)


def corrected(
    affected: Range, releases: Sequence[Version], shown: Mapping[Version, bool]
) -> Range | None:
    """How does ``watch`` correct a range? Return the range that agrees with ``shown`` (whether a
    release showed the failure), changed as little as possible.

    ``releases``: all releases of the package, which must include those in ``shown``. None: no
    release has the failure.
    """
    for version in sorted(shown, key=lambda version: (not shown[version], version)):
        if affected.contains(version) == shown[version]:
            continue
        alternatives = (
            _with(affected, version, releases)
            if shown[version]
            else _without(affected, version, releases, shown)
        )
        if not alternatives:
            return None
        texts = (text.strip() for text in alternatives)
        affected = Range(affected.package, f" {SEPARATOR} ".join(texts))
    return affected


def _with(affected: Range, version: Version, releases: Sequence[Version]) -> list[str]:
    """Return the alternatives with ``version``: an adjacent one begins earlier or ends later, or
    there is one more (the failure came back)."""
    alternatives = affected.specifier.split(SEPARATOR)
    older = max((release for release in releases if release < version), default=None)
    newer = min((release for release in releases if release > version), default=None)
    for number, text in enumerate(alternatives):
        adjacent = {
            release: release is not None and _contains(text, release) for release in (older, newer)
        }
        excluding = [part for part in _parts(text) if not _contains(part, version)]
        if not any(adjacent.values()) or not all(part.startswith(_BOUNDS) for part in excluding):
            continue
        begin = [] if adjacent[older] else [f">={_short(version)}"]
        end = [] if newer is None or adjacent[newer] else [f"<{_short(newer)}"]
        rest = [part for part in _parts(text) if part not in excluding]
        alternatives[number] = ",".join([*begin, *rest, *end]) or ">=0"
        return alternatives
    end = [] if newer is None else [f"<{_short(newer)}"]
    return [*alternatives, ",".join([f">={_short(version)}", *end])]


def _without(
    affected: Range, version: Version, releases: Sequence[Version], shown: Mapping[Version, bool]
) -> list[str]:
    """Return the alternatives without ``version``: they end before it, unless a later release has
    the failure or was not run."""
    alternatives = []
    for text in affected.specifier.split(SEPARATOR):
        if _contains(text, version):
            later = [
                release for release in releases if release > version and _contains(text, release)
            ]
            if any(shown.get(release, True) for release in later):
                parts = [*_parts(text), f"!={_short(version)}"]
            else:
                parts = [part for part in _parts(text) if not part.startswith(_UPPER)] + [
                    f"<{_short(version)}"
                ]
            text = ",".join(parts)
            if not any(_contains(text, release) for release in releases):
                continue
        alternatives.append(text)
    return alternatives


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _contains(text: str, version: Version) -> bool:
    return SpecifierSet(text.strip()).contains(version, prereleases=True)


def _short(version: Version) -> str:
    """Return the version as ranges write it: 0.34 for 0.34.0."""
    return re.sub(r"^(\d+\.\d+)\.0$", r"\1", str(version))
