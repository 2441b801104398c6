"""The evidence behind a verdict, formatted for a page."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from ...answers.audit.severity import severity
from ...cases.model import Case
from ...cases.proofs.proof import recorded_versions
from ...cases.results import Cell, TestResult
from ...cases.verdict import excerpt
from ...util.text import markdown_block, markdown_inline
from ..symbols import SYMBOLS
from .rendering import MAX_TEXT, link_name, shown

_FORM = """### Your current environment

{versions}

### \N{BUG} Describe the bug

{title}

Seen with {environment} on {device}: {verdict}

{symptom}

To reproduce, with pytest-vllm-regress {tool}:

{command}

{evidence}
"""


@dataclasses.dataclass(frozen=True)
class CaseFacts:
    """What the case file says, formatted for the page."""

    case: str
    title: str
    severity: str
    family: str
    affected: str
    workaround: str
    links: tuple[tuple[str, str], ...]
    fixes: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class TestEvidence:
    """The result of one test, formatted for the page."""

    test: str
    variant: str
    verdict: str
    sign: str
    expected: bool
    reason: str
    symptom: str
    dossier: str
    command: str
    duration: str
    started: str
    control: str


@dataclasses.dataclass(frozen=True)
class Entry:
    """A cell of the table with its evidence. ``issue``: a text for an upstream report."""

    anchor: str
    case: str
    environment: str
    environment_href: str
    device: str
    verdict: str
    sign: str
    expected: bool
    duration: str
    proofs: tuple[TestEvidence, ...]
    issue: str


def facts_of(case_id: str, case: Case | None) -> CaseFacts:
    """Return the facts of a case. ``case`` is None if only its id is known."""
    if case is None:
        return CaseFacts(shown(case_id), "", "", "", "", "", (), ())
    return CaseFacts(
        case=shown(case_id),
        title=shown(case.title),
        severity=severity(case).value,
        family=shown(case.family),
        affected=shown(case.affected_text()),
        workaround=shown(case.workaround, MAX_TEXT),
        links=_links(case.upstream),
        fixes=_links(case.fixed_by),
    )


def entry_of(
    cell: Cell, case: Case | None, tool: str, anchor: str, environment_href: str = ""
) -> Entry:
    """Return a cell with its evidence, the unexpected results first."""
    return Entry(
        anchor=anchor,
        case=shown(cell.case_id),
        environment=shown(cell.environment),
        environment_href=environment_href,
        device=shown(cell.device),
        verdict=cell.verdict.value,
        sign=SYMBOLS[cell.verdict],
        expected=cell.expected,
        duration=duration_text(sum(result.duration_s for result in cell.results)),
        proofs=tuple(
            _test_evidence(result)
            for result in sorted(cell.results, key=lambda result: result.expected)
        ),
        issue=_issue(cell, case, tool),
    )


def versions_of(results: Sequence[TestResult]) -> tuple[tuple[str, str], ...]:
    """Return the distributions of an environment, by name."""
    versions = {name: version for result in results for name, version in result.versions.items()}
    return tuple((shown(name), shown(version)) for name, version in sorted(versions.items()))


def duration_text(seconds: float) -> str:
    """Return a duration for people."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _links(urls: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((link_name(url), url) for url in urls if url.startswith("https://"))


def _test_evidence(result: TestResult) -> TestEvidence:
    return TestEvidence(
        test=shown(result.test),
        variant=shown(result.variant or ""),
        verdict=result.verdict.value,
        sign=SYMBOLS[result.verdict],
        expected=result.expected,
        reason=shown(
            " - ".join(filter(None, (result.not_expected_because, result.reason))), MAX_TEXT
        ),
        symptom=shown(result.symptom, MAX_TEXT),
        dossier=shown(result.dossier, MAX_TEXT) if result.dossier != result.symptom else "",
        command=shown(result.command, MAX_TEXT),
        duration=duration_text(result.duration_s),
        started=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(result.started_at))
        if result.started_at
        else "",
        control=result.control,
    )


def _issue(cell: Cell, case: Case | None, tool: str) -> str:
    """Return the text of an upstream report, in the sections of vLLM's bug form, with the versions
    of the packages that matter."""
    worst = next(
        (result for result in cell.results if result.verdict is cell.verdict), cell.results[0]
    )
    versions = recorded_versions(worst.versions, case)
    simulated = (
        "a simulated device (every part of vLLM is real but the model's arithmetic)"
        if cell.device == "sim"
        else f"device {cell.device}"
    )
    addresses = ", ".join(f"<{url}>" for url in case.upstream) if case else ""
    reference = (
        f"Known as {addresses}; affected as documented: {markdown_inline(case.affected_text())}."
        if case
        else ""
    )
    listed = "\n".join(f"{shown(name)} {shown(version)}" for name, version in versions.items())
    return _FORM.format(
        versions=markdown_block(listed or "unknown", "text"),
        title=markdown_inline(shown(case.title if case else cell.case_id)),
        environment=markdown_inline(shown(cell.environment)),
        device=simulated,
        verdict=f"{cell.verdict.value}: {markdown_inline(shown(excerpt(worst.reason, 400)))}",
        symptom=markdown_block(shown(worst.symptom or worst.reason, 2000), "text"),
        tool=markdown_inline(shown(tool)),
        command=markdown_block(shown(worst.command, 2000), "sh"),
        evidence=reference,
    )
