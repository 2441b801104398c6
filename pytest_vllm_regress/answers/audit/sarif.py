"""An audit as SARIF: a rule for each documented failure, a result for each place that names an
affected version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...cases.model import Case
from ..sarif import SarifResult, SarifRule
from ..sarif import to_sarif as log_of
from .audit import Audit


def to_sarif(audits: Sequence[Audit]) -> dict[str, Any]:
    """Return a SARIF log of all findings and concerns."""
    return log_of([result for audit in audits for result in _results(audit)])


def _results(audit: Audit) -> Iterator[SarifResult]:
    for finding in audit.counted:
        case, package = finding.case, finding.package
        message = f"{case.title} ({finding.reason.removeprefix('affected: ')}). {_fixed(case)}"
        rule = _rule(case)
        yield SarifResult(rule, "warning", message, package.place, package.line, audit.source)
    for concern in audit.concerns:
        rule = SarifRule(concern.id, concern.title, concern.advice, ("vllm", "preflight"))
        level = "warning" if concern.counts else "note"
        message = f"{concern.detail} {concern.advice}"
        yield SarifResult(rule, level, message, concern.place, 1, audit.source)


def _rule(case: Case) -> SarifRule:
    workaround = f" Workaround: {case.workaround}." if case.workaround else ""
    text = f"{case.title}. {_fixed(case)}{workaround}"
    return SarifRule(
        case.id,
        case.title,
        text,
        ("vllm", case.family, *case.symptom.kinds),
        text,
        case.family,
        (*case.upstream, *case.fixed_by),
    )


def _fixed(case: Case) -> str:
    return f"First fixed version: {case.first_fixed() or 'none known'}."
