"""Draft a case from a finding."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..cases.scaffold import DEVICES, Draft
from ..environments.names import recipe_named_by_file
from ..errors import UsageError
from .api.api_hunter import ApiFinding
from .api.api_oracle import ApiOutcome
from .finding import Finding
from .hunter import load
from .schemas.backends import PACKAGES
from .schemas.schema_hunter import SchemaFinding

FINDING = "finding.json"
TRACKERS = {
    "lm-format-enforcer": "https://github.com/noamgat/lm-format-enforcer/issues",
    "xgrammar": "https://github.com/mlc-ai/xgrammar/issues",
    "llguidance": "https://github.com/guidance-ai/llguidance/issues",
    "outlines": "https://github.com/dottxt-ai/outlines-core/issues",
}
"""Issue tracker of each backend: the upstream of a finding that has not been reported yet."""
VLLM = "https://github.com/vllm-project/vllm/issues"
_DEADLY = (ApiOutcome.ENGINE_DEAD, ApiOutcome.ENGINE_STUCK, ApiOutcome.OUT_OF_MEMORY)


def draft_from_file(path: Path, draft: Draft) -> tuple[Draft, str, str, str]:
    """Return the draft filled from a finding's file, the finding's name, the tracker where it
    belongs, and its report (empty if there is none).

    Raises ``UsageError`` for a file that is no finding from which a case can be made.
    """
    finding = load(path)
    if not isinstance(finding, SchemaFinding | ApiFinding):
        raise UsageError(f"{path}: a case is drafted for findings of fuzz schemas and fuzz api")
    tracker = TRACKERS[finding.backend] if isinstance(finding, SchemaFinding) else VLLM
    reports = finding.upstream.reports
    return draft_from_finding(finding, draft), finding.name, tracker, next(iter(reports), "")


def draft_from_finding(finding: SchemaFinding | ApiFinding, draft: Draft) -> Draft:
    """Fill a draft with the finding's version, environment and problem. Fields that the draft
    already sets stay as they are.

    Raises ``UsageError`` if neither names affected versions.
    """
    problem = finding.problem
    fields: dict[str, Any]
    if isinstance(finding, SchemaFinding):
        package = PACKAGES.get(finding.backend, finding.backend)
        fields = {
            "title": f"{finding.backend}: {problem}",
            "family": "structured-output",
            "package": draft.package or package,
            "phase": "probe",
            "pattern": re.escape(str(problem)).replace("\\ ", " "),
            "front": "finding",
            "devices": ("none", *DEVICES),
        }
    else:
        package, question = "vllm", finding.question
        if question.server != "text":
            raise UsageError(
                f"{finding.name}: a case is drafted for the server text only, not for {question.server}: begin with new --front serve"
            )
        deadly = problem.kind in _DEADLY
        fields = {
            "title": f"{question.operation}: {problem.kind}",
            "family": draft.family or ("engine-death" if deadly else "wrong-status"),
            "package": package,
            "kind": "engine-death" if deadly else draft.kind,
            "front": "request",
        }
    filled = {
        **fields,
        "title": draft.title or fields["title"],
        "affected": _affected(finding, package, draft),
        "affected_env": draft.affected_env or _environments(finding),
        "files": {FINDING: finding.text()},
    }
    return replace(draft, **filled)


def _affected(finding: Finding, package: str, draft: Draft) -> str:
    """Return the affected versions: those of the draft, or the one of the finding."""
    if draft.affected != Draft.affected:
        return draft.affected
    if package not in finding.versions:
        raise UsageError(
            f"{finding.name}: versions has no {package}, so that the affected versions are unknown. Give them with --affected"
        )
    return f"=={finding.versions[package]}"


def _environments(finding: Finding) -> tuple[str, ...]:
    """Return the environment of the finding, unless a file must not choose it."""
    try:
        recipe_named_by_file(finding.environment)
    except UsageError:
        return ()
    return (finding.environment,)
