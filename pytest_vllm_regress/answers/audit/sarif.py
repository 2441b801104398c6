"""SARIF 2.1.0 for code scanning: a rule for each documented failure, a result for each place that
names an affected version."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..._version import __version__
from ...cases.model import Case
from ...util.text import markdown_inline, printable
from .audit import Audit
from .matching import AuditMatch
from .preflight import Concern

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)


def to_sarif(audits: Sequence[Audit]) -> dict[str, Any]:
    """Return a SARIF log with one run: all results, and the rules that they refer to."""
    rules: dict[str, dict[str, Any]] = {}
    results = []
    for audit in audits:
        for finding in audit.counted:
            rules.setdefault(finding.case.id, _rule(finding.case))
            results.append(
                result(
                    finding.case.id,
                    "warning",
                    _message(finding),
                    finding.package.place,
                    finding.package.line,
                    audit.source,
                )
            )
        for concern in audit.concerns:
            rules.setdefault(concern.id, _preflight_rule(concern))
            level = "warning" if concern.counts else "note"
            results.append(
                result(
                    concern.id,
                    level,
                    f"{concern.detail} {concern.advice}",
                    concern.place,
                    1,
                    audit.source,
                )
            )
    return log(rules, results)


def log(rules: Mapping[str, dict[str, Any]], results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a SARIF log of results, which refer to the rules by their ids."""
    order = {rule: number for number, rule in enumerate(rules)}
    for entry in results:
        entry["ruleIndex"] = order[entry["ruleId"]]
    driver = {"name": "vllm-regress", "version": __version__, "rules": list(rules.values())}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "unicodeCodePoints",
                "results": list(results),
            }
        ],
    }


def _rule(case: Case) -> dict[str, Any]:
    fixed = f"First fixed version: {case.first_fixed() or 'none known'}."
    text = _text(
        f"{case.title}. {fixed}" + (f" Workaround: {case.workaround}." if case.workaround else "")
    )
    return {
        "id": case.id,
        "name": case.family,
        "shortDescription": {"text": _text(case.title)},
        "fullDescription": {"text": text},
        "help": {
            "text": text,
            "markdown": f"{markdown_inline(text)}\n\n"
            + "\n".join(f"- <{url}>" for url in dict.fromkeys((*case.upstream, *case.fixed_by))),
        },
        "helpUri": case.upstream[0],
        "defaultConfiguration": {"level": "warning"},
        "properties": {"tags": list(dict.fromkeys(("vllm", case.family, *case.symptom.kinds)))},
    }


def _preflight_rule(concern: Concern) -> dict[str, Any]:
    return {
        "id": concern.id,
        "shortDescription": {"text": concern.title},
        "fullDescription": {"text": concern.title},
        "help": {"text": concern.advice},
        "defaultConfiguration": {"level": "warning"},
        "properties": {"tags": ["vllm", "preflight"]},
    }


def _message(finding: AuditMatch) -> str:
    case = finding.case
    return f"{case.title} ({finding.reason.removeprefix('affected: ')}). First fixed version: {case.first_fixed() or 'none known'}."


def result(
    rule: str, level: str, message: str, place: Path | None, line: int, source: str
) -> dict[str, Any]:
    """Return a result at a line of the file ``place``; without one at ``source``, which names what
    was examined."""
    location = {"artifactLocation": {"uri": _uri(place, source)}, "region": {"startLine": line}}
    fingerprint = hashlib.sha256(
        f"{rule}\0{location['artifactLocation']}\0{message}".encode(errors="surrogatepass")
    ).hexdigest()
    return {
        "ruleId": rule,
        "level": level,
        "message": {"text": _text(message)},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {"vllmRegress/v1": fingerprint[:32]},
    }


def _uri(place: Path | None, source: str) -> str:
    from urllib.parse import quote

    if place is None:
        return quote(source, errors="surrogatepass") if source != "-" else "stdin"
    file = place / "METADATA" if place.is_dir() else place
    return file.as_uri() if file.is_absolute() else quote(os.fsencode(file))


def _text(text: str) -> str:
    """Escape ``text`` so that it is shown literally; a link in it is not a link."""
    return printable(text).replace("](", "] (")
