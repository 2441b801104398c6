"""Watch for new releases: find them, run the cases on them, and derive unexpected verdicts and
edits of case files; if requested, write the edits and the new verdicts."""

from __future__ import annotations

import collections
import contextlib
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from ..answers.audit import verdict_table
from ..cases.loading import load_case
from ..cases.model import Case
from ..cases.results import RunResult, group_into_cells, merge_results
from ..cases.verdict import Verdict
from ..environments.installed import GRAMMARS
from ..runner.batch import Batch, RunOutcome
from ..util.paths import writable_root
from ..util.report import Report, Section, Table, to_markdown
from ..util.signals import blocked
from ..util.store import Store
from ..util.text import markdown_block
from .corrections import (
    ListedReleases,
    Look,
    RangeEdit,
    UnexpectedVerdict,
    WatchedRelease,
    changes_of,
    edits_of,
    missing_neighbours,
    with_ends,
)

VLLM = "vllm"
SCHEMA_VERSION = 1
MAX_REASON = 300
_LAST_LOOK = "last look"
Run = Callable[[Sequence[Batch]], RunOutcome]


@dataclass(frozen=True)
class SeenRelease:
    """A release that ``watch`` has dealt with, and when (ISO 8601).

    ``applied`` False: something was not as expected, and the edits were not written. The release
    counts as new on the next day, too.
    """

    day: str
    applied: bool = True


class SeenReleases(Store[SeenRelease]):
    """What ``watch`` has looked at: releases by name, and the last complete look. The file has a
    line for each, so that it can be committed. Only one run at a time has it.

    Raises ``UsageError`` for an invalid file, and for one that another run uses.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, SeenRelease, what="what watch has seen")
        self.lock()

    @property
    def last_day(self) -> str:
        """The day of the last complete look; empty if there was none."""
        return self[_LAST_LOOK].day if _LAST_LOOK in self else ""

    @property
    def names(self) -> set[str]:
        """Releases that need no further look."""
        return {name for name, seen in self.entries.items() if seen.applied} - {_LAST_LOOK}

    @property
    def unapplied(self) -> tuple[str, ...]:
        """Releases whose edits were not written."""
        return tuple(name for name, seen in self.entries.items() if not seen.applied)

    def is_due(self, today: str, *, write: bool) -> bool:
        """Return whether to look: at most once a day, unless the edits of today's look still have
        to be written."""
        return self.last_day != today or (write and bool(self.unapplied))

    def add_look(
        self,
        today: str,
        seen: Iterable[WatchedRelease],
        unapplied: Iterable[WatchedRelease] = (),
        *,
        complete: bool = True,
    ) -> None:
        """Save that the releases ``seen`` were dealt with."""
        entries = {name: entry for name, entry in self.entries.items() if entry.applied}
        entries |= {str(release): SeenRelease(today) for release in seen}
        entries |= {str(release): SeenRelease(today, applied=False) for release in unapplied}
        if complete:
            entries[_LAST_LOOK] = SeenRelease(today)
        self.rewrite(entries)


def watched_packages(cases: Sequence[Case]) -> tuple[str, ...]:
    """Return the packages whose releases concern these cases: vLLM, and each grammar library that a
    case is about."""
    named = {affected.package for case in cases for affected in case.affected}
    return (VLLM, *(package for package in GRAMMARS if package in named))


def new_releases(
    listed: ListedReleases, known: ListedReleases, seen: Collection[str]
) -> tuple[WatchedRelease, ...]:
    """Return the listed releases that are neither known to this package nor seen in an earlier
    look."""
    return tuple(
        release
        for package, versions in listed.items()
        for release in (WatchedRelease(package, version) for version in versions)
        if release.version not in known.get(package, ()) and str(release) not in seen
    )


def plan(
    news: Sequence[WatchedRelease], cases: Sequence[Case], newest_vllm: Version
) -> tuple[Look, ...]:
    """Return what to run: on a release of vLLM all cases, on a release of a grammar library the
    cases about that library."""
    concerned = (
        (release, case)
        for release in news
        for case in cases
        if release.package in {VLLM, *(affected.package for affected in case.affected)}
    )
    return _looks(concerned, newest_vllm)


def _looks(
    concerned: Iterable[tuple[WatchedRelease, Case]], newest_vllm: Version
) -> tuple[Look, ...]:
    looks: dict[tuple[WatchedRelease, str], dict[Case, None]] = {}
    for release, case in concerned:
        name = environment_of(case, release, newest_vllm)
        looks.setdefault((release, name), {})[case] = None
    return tuple(Look(release, name, tuple(cases)) for (release, name), cases in looks.items())


def environment_of(case: Case, release: WatchedRelease, newest_vllm: Version) -> str:
    """Return the environment in which a case runs on a release.

    A library stands alone if the case's evidence has it alone (``xgrammar-0.1.28+torch==2.13.0``),
    else it replaces the one that the newest vLLM chose.
    """
    if release.package == VLLM:
        return f"vllm-{release.version}"
    for name in (*case.evidence.fixed, *case.evidence.affected):
        base, plus, others = name.partition("+")
        if base.startswith(f"{release.package}-"):
            return f"{release.package}-{release.version}{plus}{others}"
    return f"vllm-{newest_vllm}+{release.package}=={release.version}"


@dataclass(frozen=True)
class WatchReport:
    """Outcome of a look.

    ``unbuilt``: environments that could not be built, whose releases stay new. ``written``: the
    edits were applied.
    """

    day: str
    looks: tuple[Look, ...]
    run: RunResult
    changes: tuple[UnexpectedVerdict, ...]
    edits: tuple[RangeEdit, ...]
    unbuilt: tuple[str, ...] = ()
    written: bool = False

    @property
    def unexpected_releases(self) -> tuple[WatchedRelease, ...]:
        """The releases on which something was not as expected."""
        return tuple(dict.fromkeys(change.release for change in self.changes))

    @property
    def seen_releases(self) -> tuple[WatchedRelease, ...]:
        """The releases that need no further look: they were run, and everything was as expected or
        the edits were written."""
        left = {look.release for look in self.looks if look.environment in self.unbuilt}
        left |= set() if self.written else {*self.unexpected_releases}
        return tuple(dict.fromkeys(look.release for look in self.looks if look.release not in left))

    def diff(self) -> str:
        """Return all edits as one unified diff."""
        return "".join(edit.diff() for edit in self.edits)

    def report(self) -> Report:
        """Return for people: the environments, the changes, and the corrected ranges with their new
        ends."""
        looks = [(str(look.release), look.environment, self._counts(look)) for look in self.looks]
        sections = [Section(parts=[Table(("release", "environment", "verdicts"), looks)])]
        rows = []
        details = []
        for c in self.changes:
            rows.append((c.verdict.value, c.case.id, str(c.release), c.device, c.case.title))
            by_hand = f"no edit: {c.by_hand}" if c.by_hand else ""
            reasons = [line[:MAX_REASON] for line in (*c.reasons, by_hand) if line]
            details.append(Section(f"{c.case.id} on {c.release}", [tuple(reasons)]))
        if rows:
            header = ("verdict", "case", "release", "device", "failure")
            sections += [Section(parts=[Table(header, rows)]), *details]
        if self.edits:
            ranges = [
                (e.case.id, str(e.before), e.after.specifier, "; ".join(map(str, e.ends)))
                for e in self.edits
            ]
            table = Table(("case", "range", "corrected", "new ends"), ranges)
            title = f"Ranges {'corrected' if self.written else 'to correct'}"
            sections.append(Section(title, [table]))
        return Report(f"New releases, {self.day}", sections)

    def markdown(self) -> str:
        """Return the report for a pull request or the summary of a CI job, with the diff."""
        diff = markdown_block(self.diff().rstrip("\n"), "diff") + "\n" if self.edits else ""
        return "\n".join(filter(None, (to_markdown(self.report()), diff)))

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--json``."""
        return {
            "schema": SCHEMA_VERSION,
            "day": self.day,
            "looks": [
                {**vars(look), "release": str(look.release), "cases": len(look.cases)}
                for look in self.looks
            ],
            "unbuilt": self.unbuilt,
            "changes": [change.to_json() for change in self.changes],
            "edits": [edit.to_json() for edit in self.edits],
            "written": self.written,
            "diff": self.diff(),
        }

    def _counts(self, look: Look) -> str:
        if look.environment in self.unbuilt:
            return "could not be built"
        cells = group_into_cells(
            result for result in self.run.results if result.environment == look.environment
        )
        counts = collections.Counter(cell.verdict for cell in cells)
        words = (f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict])
        return ", ".join(words) or "no verdicts"


def look(looks: Sequence[Look], listed: ListedReleases, day: str, run: Run) -> WatchReport | None:
    """Run the cases on the new releases and return the report; None if the run was interrupted.

    If an edit makes an end of a range at which the adjacent release was never run, that case is run
    there, too, so that the end is observed.
    """
    outcomes = [run([entry.batch for entry in looks])]
    if outcomes[0].interrupted:
        return None
    edits = _edits(looks, outcomes[0].run, listed)
    neighbours = _looks(missing_neighbours(edits), listed[VLLM][-1])
    if neighbours:
        outcomes.append(run([entry.batch for entry in neighbours]))
        if outcomes[-1].interrupted:
            return None
    merged = merge_results(outcome.run for outcome in outcomes)
    unbuilt = tuple(
        dict.fromkeys(name for outcome in outcomes for name in (*outcome.unbuilt, *outcome.lost))
    )
    built = [entry for entry in (*looks, *neighbours) if entry.environment not in unbuilt]
    changes = changes_of(built, merged.results)
    return WatchReport(day, tuple(looks), merged, changes, _edits(built, merged, listed), unbuilt)


def write_look(report: WatchReport) -> tuple[WatchReport, Path, int]:
    """Apply the edits, and add the verdicts to the table beside the cases: all or nothing.

    Return the report, the table's file and the number of new verdicts.
    """
    cases = {case.id: case for entry in report.looks for case in entry.cases}
    folder = next(iter(cases.values())).directory.parent
    with _all_or_nothing(report.edits):
        cases |= {edit.case.id: load_case(edit.case.path) for edit in report.edits}
        count = verdict_table.record(folder, tuple(cases.values()), report.run.results)
    return replace(report, written=True), folder / verdict_table.FILE, count


@contextlib.contextmanager
def _all_or_nothing(edits: Iterable[RangeEdit]) -> Iterator[None]:
    """Write all edits, and undo them if one cannot be written or the block fails. Signals are held
    back until the block has ended."""
    with contextlib.ExitStack() as taken_back, blocked():
        for edit in edits:
            edit.write()
            taken_back.callback(edit.take_back)
        yield
        taken_back.pop_all()


def _edits(looks: Sequence[Look], run: RunResult, listed: ListedReleases) -> tuple[RangeEdit, ...]:
    edits = edits_of(looks, run.results, listed)
    table = verdict_table.read_table([edit.case for edit in edits]).with_results(run.results)
    return tuple(with_ends(edit, table, listed) for edit in edits)


def default_place(directory: Path, case_ids: Iterable[str]) -> Path:
    """Return the file in the cache for this choice of cases."""
    key = repr((str(directory.absolute()), sorted(set(case_ids))))
    return writable_root() / "watch" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsonl"
