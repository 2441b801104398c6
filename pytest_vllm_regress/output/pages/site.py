"""The site of everything that is recorded: an overview, a page for each case and release, badges,
and the documents of the project.

Nothing is run. Sources are the case files, their proofs and observations, the table of verdicts,
and the locks.
"""

from __future__ import annotations

import dataclasses
import posixpath
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from ...answers.audit.boundaries import Boundary, boundaries
from ...answers.audit.releases import better
from ...answers.audit.severity import Severity, severity
from ...answers.audit.verdict_table import Recorded, VerdictTable, read_table
from ...cases.cells import group_into_cells
from ...cases.model import Case
from ...cases.proofs.proof import FILE as PROOF
from ...cases.proofs.proof import BisectedCommit, read_proof
from ...cases.proofs.rejudge import OBSERVATIONS_FILE
from ...cases.results import RunResult, read_results
from ...errors import UsageError
from ...surveys.drift import Drift, open_drifts
from .documents import Document, Sources, documents_of, render_document, reports
from .evidence import Entry, entry_of, facts_of
from .folder import write_folder
from .grid import IN_RANGE, SIGNS, Column, Grid, Mark, row_of, unexpected_first
from .links import broken_links
from .record import Knowledge, State
from .rendering import MAX_TEXT, date_text, file_name, render, shown
from .run_page import place_of

DRIFT = "docs/records/drift.jsonl"
"""Where a checkout of the project has the record of `drift`."""
MAX_COMMANDS = 2
_COLORS = ((0, "#1a7f37"), (10, "#9a6700"))
"""The colour of a badge up to a number of failures."""
_MANY = "#a4141c"


@dataclasses.dataclass(frozen=True)
class Bar:
    """A release on a case's page. ``edge``:

    ``observed-edge`` or ``inferred-edge`` if an end of the range lies before it.
    """

    release: str
    href: str
    state: str
    sign: str
    word: str
    edge: str = ""


@dataclasses.dataclass(frozen=True)
class Event:
    """A recorded verdict on a case's page. ``anchor``: its place, unless its evidence has it."""

    date: str
    environment: str
    device: str
    verdict: str
    sign: str
    expected: bool
    anchor: str


@dataclasses.dataclass(frozen=True)
class CaseRecord:
    """What a case's page shows besides its evidence."""

    bars: tuple[Bar, ...]
    boundaries: tuple[Boundary, ...]
    commits: tuple[BisectedCommit, ...]
    commands: tuple[str, ...]
    history: tuple[Event, ...]
    text: Markup


@dataclasses.dataclass(frozen=True)
class Failure:
    """A known failure of a release."""

    case: str
    title: str
    href: str
    severity: str
    known: str
    workaround: str
    observed: bool


def write_site(
    folder: Path, cases: Sequence[Case], locks: Path, project: Path | None = None
) -> int:
    """Write the site to ``folder`` and return the number of its files. ``project``: the folder with
    ``docs``; None leaves them out.

    Raises ``UsageError`` if a link leads nowhere; then nothing is written.
    """
    files = build_site(cases, locks, project)
    if broken := broken_links(files):
        raise UsageError(
            "\n".join((f"{len(broken)} links lead nowhere; nothing was written", *broken[:50]))
        )
    write_folder(folder, files)
    return len(files)


def build_site(
    cases: Sequence[Case], locks: Path, project: Path | None = None, now: float | None = None
) -> dict[str, str | bytes]:
    """Return the content of all files by path. ``now``: in seconds since the epoch.

    Raises ``UsageError`` for a link to a missing file.
    """
    table = read_table(cases)
    knowledge = Knowledge(cases, table, locks)
    documents = documents_of(project) if project else {}
    nav = [("Overview", "index.html"), ("Releases", "releases/index.html")]
    optional = (("Documentation", "docs/index.html"), ("About", "README.html"))
    nav += [(name, page) for name, page in optional if page in documents.values()]
    files: dict[str, str | bytes] = {
        "index.html": render(
            "index.html",
            grid=overview(knowledge),
            nav=_from("index.html", nav),
            made=date_text(now),
        )
    }
    files |= _release_pages(knowledge, nav, open_drifts(project / DRIFT).entries if project else {})
    sources = Sources(project or Path(), _link_targets(cases, documents, project))
    rendered = {name: render_document(sources, name, page) for name, page in documents.items()}
    for case in cases:
        text = _description(case, cases, sources)
        rendered |= {f"{case.directory.name}/README.md": text} if text else {}
        files[case_page(case)] = _case_html(case, knowledge, table, text, nav)
    if missing := reports(rendered):
        raise UsageError(
            "\n".join((f"{len(missing)} links lead nowhere; nothing was written", *missing[:50]))
        )
    for name, page in documents.items():
        files[page] = render(
            "document.html",
            title=rendered[name].title,
            content=rendered[name].html,
            nav=_from(page, nav),
            images=True,
        )
    for document in rendered.values():
        files |= document.files
    return files


def overview(knowledge: Knowledge) -> Grid:
    """Return the table of cases by other environments and, nearest to what a browser shows first,
    releases."""
    columns = [
        *map(Column, knowledge.others),
        *(Column(name, release_page(name)) for name in knowledge.releases),
    ]
    rows = []
    for case in knowledge.cases:
        cells = [_marks(case, knowledge.in_environment(case, name)) for name in knowledge.others]
        cells += [_release_marks(case, state) for state in knowledge.states(case).values()]
        rows.append(row_of(case.id, case, case_page(case), cells))
    return Grid(tuple(columns), unexpected_first(rows))


def case_page(case: Case) -> str:
    """Return the path of a case's page."""
    return f"cases/{file_name(case.id)}.html"


def release_page(name: str) -> str:
    """Return the path of a release's page."""
    return f"releases/{name}.html"


def badge(label: str, failures: int) -> str:
    """Return an SVG badge with the number of known failures."""
    text = f"{failures} known failure{'' if failures == 1 else 's'}"
    color = next((color for limit, color in _COLORS if failures <= limit), _MANY)
    return render(
        "badge.svg",
        label=label,
        text=text,
        color=color,
        left=7 * len(label) + 12,
        right=7 * len(text) + 10,
    )


def _release_marks(case: Case, state: State) -> list[Mark]:
    """Return the verdicts; if none of them is clear, also what the range says."""
    marks = _marks(case, state.recorded)
    return (
        [*marks, Mark(IN_RANGE, case_page(case))]
        if state.failing and state.observed is None
        else marks
    )


def _marks(case: Case, recorded: Sequence[Recorded]) -> list[Mark]:
    return [
        Mark(
            entry.verdict.value,
            f"{case_page(case)}#{place_of(entry.environment, entry.device)}",
            entry.verdict.expected,
            shown(entry.device),
        )
        for entry in recorded
    ]


def _case_html(
    case: Case,
    knowledge: Knowledge,
    table: VerdictTable,
    text: Document | None,
    nav: Sequence[tuple[str, str]],
) -> str:
    entries = _entries(case)
    anchors = {entry.anchor for entry in entries}
    ends = boundaries(case, table)
    proof = read_proof(case.directory / PROOF) if (case.directory / PROOF).exists() else None
    record = CaseRecord(
        bars=_bars(case, knowledge, ends),
        boundaries=ends,
        commits=proof.commits if proof else (),
        commands=tuple(
            f"vllm-regress run {case.id} --env {name}"
            for listed in (case.evidence.affected, case.evidence.fixed)
            for name in listed[:MAX_COMMANDS]
        ),
        history=tuple(_event(entry, anchors) for entry in knowledge.history(case)),
        text=text.html if text else Markup(),
    )
    return render(
        "case.html",
        facts=facts_of(case.id, case),
        entries=entries,
        record=record,
        nav=_from(case_page(case), nav),
        images=True,
    )


def _entries(case: Case) -> list[Entry]:
    """Return the evidence that is stored beside the case."""
    path = case.directory / OBSERVATIONS_FILE
    run = read_results(path) if path.exists() else RunResult()
    return [
        entry_of(cell, case, run.tool_version, place_of(cell.environment, cell.device))
        for cell in group_into_cells(run.results)
    ]


def _event(entry: Recorded, anchors: set[str]) -> Event:
    place = place_of(entry.environment, entry.device)
    return Event(
        entry.date,
        shown(entry.environment),
        shown(entry.device),
        entry.verdict.value,
        SIGNS[entry.verdict.value],
        entry.verdict.expected,
        "" if place in anchors else place,
    )


def _bars(case: Case, knowledge: Knowledge, ends: Sequence[Boundary]) -> tuple[Bar, ...]:
    """Return a bar for each release; none if the range does not name vLLM and nothing was run."""
    edges = {
        max(end.inside, end.outside, key=knowledge.releases.index): "observed-edge"
        if end.observed
        else "inferred-edge"
        for end in ends
        if end.package == "vllm" and {end.inside, end.outside} <= set(knowledge.releases)
    }
    return tuple(
        Bar(name, release_page(name), *_bar_state(state), edge=edges.get(name, ""))
        for name, state in knowledge.states(case).items()
    )


def _bar_state(state: State) -> tuple[str, str, str]:
    """Return class, sign and words of a bar."""
    if state.recorded:
        clear = next(
            (entry for entry in state.recorded if entry.shown is not None), state.recorded[0]
        )
        verdict = clear.verdict.value
        return verdict, SIGNS[verdict], f"{verdict.replace('_', ' ')}, {clear.device}, {clear.date}"
    if state.in_range:
        return IN_RANGE, SIGNS[IN_RANGE], "not run, in the affected range"
    if state.in_range is None:
        return "unknown", "?", "not run, and the versions of its packages are not known"
    return "outside", "·", "not run, outside the affected range"


def _release_pages(
    knowledge: Knowledge, nav: Sequence[tuple[str, str]], drifts: Mapping[str, Drift]
) -> dict[str, str | bytes]:
    files: dict[str, str | bytes] = {}
    rows = []
    names = knowledge.releases
    for number, name in enumerate(names):
        failures = _failures(knowledge, name)
        severities = _severities(failures)
        findings = knowledge.findings(name)
        advice = better(findings, knowledge.cases)
        files[f"badges/{name}.svg"] = badge(f"vLLM {name}", len(failures))
        files[release_page(name)] = render(
            "release.html",
            release=name,
            failures=failures,
            severities=severities,
            advice=str(advice) if advice else "",
            drift=drifts.get(name),
            basis=""
            if knowledge.has_lock(name)
            else "Only ranges of vLLM itself count, because the project has no lock of this release.",
            earlier=names[number - 1] if number else "",
            later=names[number + 1] if number + 1 < len(names) else "",
            nav=_from(release_page(name), nav),
            images=True,
        )
        rows.append(
            {
                "name": name,
                "failures": len(failures),
                "observed": sum(failure.observed for failure in failures),
                "severities": ", ".join(f"{grade} {count}" for grade, count in severities),
            }
        )
    index = "releases/index.html"
    return {**files, index: render("releases.html", releases=rows[::-1], nav=_from(index, nav))}


def _failures(knowledge: Knowledge, name: str) -> list[Failure]:
    """Return the known failures of a release, the gravest first."""
    reasons = {
        finding.case.id: finding.reason.removeprefix("affected: ")
        for finding in knowledge.findings(name)
    }
    failing = [(case, knowledge.states(case)[name]) for case in knowledge.cases]
    return [
        Failure(
            case=case.id,
            title=shown(case.title),
            href=case_page(case),
            severity=severity(case).value,
            known=f"observed ({seen.device}, {seen.date})"
            if (seen := state.observed)
            else f"range: {reasons.get(case.id, '')}",
            workaround=shown(case.workaround, MAX_TEXT),
            observed=state.observed is not None,
        )
        for case, state in sorted(failing, key=lambda item: (severity(item[0]).rank, item[0].id))
        if state.failing
    ]


def _severities(failures: Sequence[Failure]) -> list[tuple[str, int]]:
    counted = Counter(failure.severity for failure in failures)
    return [(grade.value, counted[grade.value]) for grade in Severity if counted[grade.value]]


def _link_targets(
    cases: Sequence[Case], documents: Mapping[str, str], project: Path | None
) -> dict[str, str]:
    """Return the pages that links in documents lead to, by the path of what they name."""
    if not documents:
        return {}
    targets = {**documents, "cases": "index.html", "docs": "docs/index.html"}
    for case in cases:
        if project is not None and case.directory.is_relative_to(project):
            place = case.directory.relative_to(project).as_posix()
            targets |= {place: case_page(case), f"{place}/README.md": case_page(case)}
    return targets


def _description(case: Case, cases: Sequence[Case], sources: Sources) -> Document | None:
    """Return the README of a case; without the project's documents its links lead only to other
    cases."""
    path = case.directory / "README.md"
    if not path.exists():
        return None
    if not sources.pages or not path.is_relative_to(sources.root):
        folder = case.directory.parent
        beside = [other for other in cases if other.directory.parent == folder]
        targets = {
            f"{other.directory.name}{end}": case_page(other)
            for other in beside
            for end in ("", "/README.md")
        }
        sources = Sources(folder, targets, complete=False)
    return render_document(sources, path.relative_to(sources.root).as_posix(), case_page(case))


def _from(page: str, nav: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the links of the site's pages as they are written in ``page``."""
    return tuple(
        (name, posixpath.relpath(target, posixpath.dirname(page) or ".")) for name, target in nav
    )
