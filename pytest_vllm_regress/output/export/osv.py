"""OSV records (https://ossf.github.io/osv-schema/) of cases: which versions of which package have a
failure, for scanners with a private database."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ...cases.model import Case, Range
from ...cases.results import RunResult
from ...errors import UsageError

SCHEMA_VERSION = "1.6.0"
PREFIX = "x_VLLMREGRESS-"
"""Begins the id of a record.

The schema reserves ``x_`` for databases that have no registered prefix.
"""
_OPEN = "0"


def osv_record(case: Case, observed: Iterable[RunResult]) -> dict[str, Any]:
    """Return the record of a case. ``observed``: its stored runs; the last one dates the record.

    A failure that needs versions of several packages is recorded for the first one; the others are
    in ``database_specific``. Raises ``UsageError`` for a range that events cannot express.
    """
    first, *others = case.affected
    fixes = [{"type": "FIX", "url": url} for url in case.fixed_by]
    reports = [{"type": "REPORT", "url": url} for url in case.upstream]
    return {
        "schema_version": SCHEMA_VERSION,
        "id": PREFIX + case.id,
        "modified": _modified(case, observed),
        "summary": case.title,
        "details": _details(case),
        "affected": [_affected(case, first)],
        "references": [*reports, *fixes],
        "database_specific": {
            "kind": [str(kind) for kind in case.symptom.kinds],
            "family": case.family,
            "also_needs": [str(other) for other in others],
        },
    }


def _modified(case: Case, observed: Iterable[RunResult]) -> str:
    times = [result.ended_at for run in observed for result in run.results]
    seconds = max(times, default=0.0) or case.path.stat().st_mtime
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _details(case: Case) -> str:
    parts = [
        f"Shows as {case.symptom.kind}, text like {case.symptom.pattern}",
        f"Affected: {case.affected_text()}.",
        f"Workaround: {case.workaround}." if case.workaround else "",
        "A functional failure, not a vulnerability.",
    ]
    return "\n\n".join(filter(None, parts))


def _affected(case: Case, affected: Range) -> dict[str, Any]:
    return {
        "package": {
            "ecosystem": "PyPI",
            "name": affected.package,
            "purl": f"pkg:pypi/{affected.package}",
        },
        "ranges": [{"type": "ECOSYSTEM", "events": events(case.id, affected)}],
    }


def events(case_id: str, affected: Range) -> list[dict[str, str]]:
    """Return introduced and fixed (or last_affected) events of a range whose alternatives are one
    interval each."""
    return [
        event for specifiers in affected.alternatives for event in _interval(case_id, specifiers)
    ]


def _interval(case_id: str, specifiers: SpecifierSet) -> list[dict[str, str]]:
    introduced, end = _OPEN, dict[str, str]()
    for part in sorted(specifiers, key=str):
        version = part.version.removesuffix(".*")
        if part.operator == ">=":
            introduced = version
        elif part.operator == "<":
            end = {"fixed": version}
        elif part.operator == "<=":
            end = {"last_affected": version}
        elif part.operator == "==" and not part.version.endswith(".*"):
            introduced, end = version, {"last_affected": version}
        else:
            raise UsageError(
                f"{case_id}: OSV events cannot express {part}: write the range with >=, <, <= or =="
            )
    if end and introduced != _OPEN and Version(next(iter(end.values()))) < Version(introduced):
        raise UsageError(f"{case_id}: the range {specifiers} is empty")
    return [{"introduced": introduced}, *([end] if end else [])]
