"""Trace the commits that fixed or broke a case, compare them with case.toml, and record them in its
evidence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace
from packaging.version import Version

from ..answers.audit.boundaries import Boundary, boundaries
from ..answers.audit.verdict_table import read_table
from ..cases.model import Case
from ..cases.proofs import proof
from ..cases.proofs.proof import BisectedCommit
from .bisection.documented import ReleasePair, Trace, TraceOptions, release_pairs, trace
from .bisection.search import CandidateRunner


@dataclasses.dataclass(frozen=True)
class TraceReport:
    """Outcome for one case: the commits recorded in ``path``, or the problems that prevent it.

    ``resumable``: the results are kept, so that the same command runs nothing twice.
    """

    case: Case
    commits: tuple[BisectedCommit, ...] = ()
    problems: tuple[str, ...] = ()
    path: Path | None = None
    resumable: bool = False

    def lines(self) -> list[str]:
        """Return the text for people."""
        if self.path is None:
            note = "; repeat the command to resume" if self.resumable else ""
            return [
                f"NOT TRACED  {self.case.id}{note}",
                *(f"    {problem}" for problem in self.problems),
            ]
        return [
            f"TRACED      {self.case.id}: {commit.kind} {commit.address}, {commit.runs} runs, {commit.seconds:.0f} s: {self.path}"
            for commit in self.commits
        ]


def trace_case(
    case: Case, options: TraceOptions, runner: CandidateRunner, command: Callable[[str], str]
) -> TraceReport:
    """Search the commits between adjacent releases if runs of them are recorded, else between those
    of the evidence.

    ``command``: from a case id to the command that validates the case.

    Raises ``KeyboardInterrupt`` when a run is interrupted; the results so far are kept.
    """
    if problems := proof.check_proof(case, command=command(case.id), commits=False):
        return TraceReport(case, problems=tuple(problems))
    evidence = proof.read_proof(case.directory / proof.FILE)
    traces: list[Trace] = []
    ends = boundaries(case, read_table([case]))
    for pair in (narrowed(pair, ends) for pair in release_pairs(case, evidence)):
        runner.say(
            f"{case.id}: {'fixed' if pair.is_fix else 'broken'} between {pair}, according to recorded runs"
        )
        traces.append(trace(case, pair, options, runner))
    problems = [problem for case_trace in traces for problem in case_trace.problems]
    commits = tuple(commit for case_trace in traces for commit in case_trace.commits)
    if problems:
        return TraceReport(case, commits, tuple(problems), resumable=True)
    path = proof.write_proof(case, replace(evidence, commits=commits))
    for case_trace in traces:
        case_trace.search_log.forget()
    return TraceReport(case, commits, path=path)


def narrowed(pair: ReleasePair, ends: Sequence[Boundary]) -> ReleasePair:
    """Return the adjacent releases between which the change of ``pair`` was observed, or ``pair``
    itself.

    ``ends``: those of the case's ranges.
    """
    for end in ends:
        older, younger = sorted((end.inside, end.outside), key=Version)
        narrow = ReleasePair(end.package, older, younger, older == end.inside)
        within = Version(pair.older) <= Version(older) and Version(younger) <= Version(pair.younger)
        if (
            end.observed
            and within
            and (narrow.package, narrow.is_fix) == (pair.package, pair.is_fix)
        ):
            return narrow
    return pair
