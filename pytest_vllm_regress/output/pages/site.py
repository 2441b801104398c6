"""The site of everything that is recorded: an overview, a page for each case and release, badges,
and the documents of the project.

Nothing is run. Sources are the case files, their proofs and observations, the table of verdicts,
and the locks.
"""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from ...answers.audit.boundaries import Boundary, boundaries
from ...answers.audit.matching import Severity, severity
from ...answers.audit.upgrades import better
from ...answers.audit.verdict_table import read_table
from ...answers.fixes.index import fix_index
from ...cases.model import Case
from ...cases.proofs.proof import recorded_proof
from ...cases.proofs.rejudge import load_observations
from ...cases.results import group_into_cells
from ...errors import UsageError
from ...surveys.drift_record import Drift, open_drifts
from .documents import RenderedDocument, Sources, documents_of, render_document
from .knowledge import Knowledge, ReleaseState
from .rendering import (
    IN_RANGE,
    BrokenLink,
    Column,
    Grid,
    Mark,
    Row,
    ShownCell,
    broken_links,
    case_page,
    date_text,
    links_of,
    place_of,
    render,
    shown,
    write_folder,
)
from .search import fixes_after, search_index

DRIFT = "docs/records/drift.jsonl"
"""Where a checkout of the project has the record of `drift`."""


@dataclass(frozen=True)
class WrittenSite:
    """How many files a site has, and what is wrong in the READMEs of its cases."""

    files: int
    notes: Sequence[str]


def write_site(
    folder: Path, cases: Sequence[Case], locks: Path, project: Path | None = None, manual: str = ""
) -> WrittenSite:
    """Write the site to ``folder``. ``project``: the folder with ``docs``; None leaves them out.

    ``manual``: where the documentation is instead, relative to ``folder``.

    Raises ``UsageError`` if a link leads nowhere; then nothing is written. What is wrong in the
    README of a case is only noted, there and in the answer: cases may come from many people.
    """
    site = _build(cases, locks, project, manual=manual)
    notes = [*site.problems.values(), *map(str, site.mark_broken_links())]
    if broken := [link for link in broken_links(site.files, manual) if str(link) not in notes]:
        lines = map(str, broken[:50])
        raise UsageError(
            "\n".join((f"{len(broken)} links lead nowhere; nothing was written", *lines))
        )
    write_folder(folder, site.files)
    return WrittenSite(len(site.files), notes)


def build_site(
    cases: Sequence[Case], locks: Path, project: Path | None = None, now: float | None = None
) -> dict[str, str | bytes]:
    """Return the content of all files by path. ``now``: in seconds since the epoch."""
    return _build(cases, locks, project, now).files


def _build(
    cases: Sequence[Case],
    locks: Path,
    project: Path | None,
    now: float | None = None,
    manual: str = "",
) -> _Site:
    table = read_table(cases)
    documents = documents_of(project) if project and not manual else {}
    site = _Site(Knowledge(cases, table, locks), documents, manual)
    site.add(
        "index.html",
        "index.html",
        grid=overview(site.knowledge),
        made=date_text(now),
        bars=bars(site.failures),
    )
    site.add_releases(open_drifts(project / DRIFT).entries if project else {})
    site.add("search.html", "search.html", index=search_index(cases, fix_index()))
    sources = Sources(project or Path(), _link_targets(cases, site.documents, project))
    for case in cases:
        try:
            text = _description(case, cases, sources)
        except UsageError as error:
            text, site.problems[case.id] = None, str(error)
        site.add_case(case, boundaries(case, table), text)
    for name, page in site.documents.items():
        document = render_document(sources, name, page)
        site.files |= document.files
        site.add(page, "document.html", title=document.title, content=document.html, images=True)
    return site


class _Site:
    """The files of a site, which grow page by page. ``documents``: as from ``documents_of``;
    ``manual``: as for ``write_site``.

    ``problems``: why the README of a case is not shown, by the case's id.
    """

    def __init__(self, knowledge: Knowledge, documents: Mapping[str, str], manual: str) -> None:
        self.manual = manual
        self.knowledge = knowledge
        self.documents = documents
        self.files: dict[str, str | bytes] = {}
        self.problems: dict[str, str] = {}
        self.failures = {name: _failures(knowledge, name) for name in knowledge.releases}
        self._described: dict[str, dict[str, Any]] = {}
        self._nav = [("Overview", "index.html"), ("Releases", "releases/index.html")]
        for entry in (("Documentation", manual or "docs/index.html"), ("About", "README.html")):
            if entry[1] in (manual, *documents.values()):
                self._nav.append(entry)

    def add(self, page: str, template: str, **values: Any) -> None:
        """Add a page with links to the main pages."""
        folder = posixpath.dirname(page) or "."
        nav = [(name, posixpath.relpath(target, folder)) for name, target in self._nav]
        search = posixpath.relpath("search.html", folder)
        self.files[page] = render(template, nav=nav, search=search, **values)

    def add_case(self, case: Case, ends: Sequence[Boundary], text: RenderedDocument | None) -> None:
        entries = [
            ShownCell(cell, case, run.tool_version, place_of(cell.environment, cell.device))
            for run in load_observations(case)
            for cell in group_into_cells(run.results)
        ]
        proof = recorded_proof(case)
        self.files |= text.files if text else {}
        values: dict[str, Any] = {
            "case_id": case.id,
            "case": case,
            "entries": entries,
            "record": {
                "states": self.knowledge.states(case),
                "edges": _edges(self.knowledge, ends),
                "boundaries": ends,
                "commits": proof.commits if proof else (),
                "events": self.knowledge.recorded[case.id],
                "anchors": [entry.anchor for entry in entries],
                "text": text.html if text else "",
                "problem": self.problems.get(case.id, ""),
                "broken": [],
            },
        }
        self._described[case_page(case.id)] = values
        self.add(case_page(case.id), "case.html", **values, images=True)

    def mark_broken_links(self) -> list[BrokenLink]:
        """Name on the page of each case the links of its README that lead nowhere, and return
        them."""
        marked: list[BrokenLink] = []
        for page, links in groupby(
            broken_links(self.files, self.manual), key=lambda link: link.page
        ):
            values = self._described.get(page)
            own = links_of(values["record"]["text"]) if values else ()
            broken = [link for link in links if link.link in own]
            if values and broken:
                record = {**values["record"], "broken": [link.link for link in broken]}
                self.add(page, "case.html", **{**values, "record": record}, images=True)
                marked += broken
        return marked

    def add_releases(self, drifts: Mapping[str, Drift]) -> None:
        names = ("", *self.failures, "")
        for earlier, later, (name, failures) in zip(
            names, names[2:], self.failures.items(), strict=False
        ):
            self.files[f"badges/{name}.svg"] = badge(f"vLLM {name}", len(failures))
            self.add(
                release_page(name),
                "release.html",
                release=name,
                failures=failures,
                advice=str(better(self.knowledge.findings(name), self.knowledge.cases) or ""),
                drift=drifts.get(name),
                later_fixes=fixes_after(fix_index(), name),
                has_lock=len(self.knowledge.inventories[name].versions) > 1,
                earlier=earlier,
                later=later,
                images=True,
            )
        self.add("releases/index.html", "releases.html", releases=self.failures)


def overview(knowledge: Knowledge) -> Grid:
    """Return the table of cases, the gravest first, by releases."""
    rows = [
        Row(
            case.id,
            case,
            case_page(case.id),
            [mark_of(case, state) for state in knowledge.states(case).values()],
        )
        for case in sorted(knowledge.cases, key=lambda case: (severity(case).rank, case.id))
    ]
    return Grid([Column(name, release_page(name)) for name in knowledge.releases], rows)


def release_page(name: str) -> str:
    """Return the path of a release's page."""
    return f"releases/{name}.html"


def bars(failures: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Counter[Severity]]:
    """Return the number of known failures of each release by severity."""
    return {
        name: Counter(failure["severity"] for failure in known) for name, known in failures.items()
    }


def badge(label: str, failures: int) -> str:
    """Return an SVG badge with the number of known failures."""
    return render("badge.svg", label=label, failures=failures)


def mark_of(case: Case, state: ReleaseState) -> Sequence[Mark]:
    """Return the mark of a case in a release, if anything is known: one for all devices.

    What is not expected comes first, then what shows the failure; equals by environment, so that
    the release as it is comes before its build for CPUs.
    """
    recorded = sorted(
        state.recorded,
        key=lambda entry: (
            entry.verdict.expected,
            entry.shown is None,
            not entry.shown,
            entry.environment,
            entry.device,
        ),
    )
    page = case_page(case.id)
    marks = [
        Mark(
            entry.verdict.value,
            f"{page}#{place_of(entry.environment, entry.device)}",
            entry.verdict.expected,
            shown(entry.device),
        )
        for entry in recorded
    ]
    if state.failing and state.observed is None:  # no verdict is clear
        marks.insert(sum(not mark.expected for mark in marks), Mark(IN_RANGE, page))
    disputed = {True, False} <= {entry.shown for entry in recorded}
    return [replace(mark, also=marks[1:], disputed=disputed) for mark in marks[:1]]


def _edges(knowledge: Knowledge, ends: Sequence[Boundary]) -> dict[str, str]:
    """Return the releases at the ends of the affected range, and whether each end was observed."""
    return {
        max(end.inside, end.outside, key=knowledge.releases.index): "observed-edge"
        if end.observed
        else "inferred-edge"
        for end in ends
        if end.package == "vllm" and {end.inside, end.outside} <= set(knowledge.releases)
    }


def _failures(knowledge: Knowledge, name: str) -> list[dict[str, Any]]:
    """Return the known failures of a release, the gravest first: observed by a run, or in the range
    for a reason."""
    reasons = {match.case.id: match.reason for match in knowledge.findings(name)}
    states = {case: knowledge.states(case)[name] for case in knowledge.cases}
    failing = [case for case, state in states.items() if state.failing]
    return [
        {
            "case": case,
            "severity": severity(case),
            "observed": states[case].observed,
            "reason": reasons.get(case.id, "").removeprefix("affected: "),
        }
        for case in sorted(failing, key=lambda case: (severity(case).rank, case.id))
    ]


def _link_targets(
    cases: Sequence[Case], documents: Mapping[str, str], project: Path | None
) -> dict[str, str]:
    """Return the pages that links in documents lead to, by the path of what they name."""
    if not documents or project is None:
        return {}
    targets = {**documents, "cases": "index.html", "docs": "docs/index.html"}
    inside = [case for case in cases if case.directory.is_relative_to(project)]
    return targets | _case_targets(inside, project)


def _case_targets(cases: Iterable[Case], root: Path) -> dict[str, str]:
    return {
        f"{case.directory.relative_to(root).as_posix()}{end}": case_page(case.id)
        for case in cases
        for end in ("", "/README.md")
    }


def _description(case: Case, cases: Sequence[Case], sources: Sources) -> RenderedDocument | None:
    """Return the README of a case; without the project's documents its links lead only to other
    cases."""
    path = case.directory / "README.md"
    if not os.path.lexists(path):
        return None
    if not sources.pages or not path.is_relative_to(sources.root):
        folder = case.directory.parent
        beside = [other for other in cases if other.directory.parent == folder]
        sources = Sources(folder, _case_targets(beside, folder), complete=False)
    return render_document(sources, path.relative_to(sources.root).as_posix(), case_page(case.id))
