"""Draft a case from a finding."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from ..cases.scaffold import DEVICES, Draft
from ..environments.names import recipe_named_by_file
from ..errors import UsageError
from ..util.documents import load_json
from .api.finding import ApiFinding, is_api_finding
from .api.finding import load as load_api_finding
from .api.oracle import Outcome
from .artefact import MAX_BYTES, Artefact, load
from .checker import PACKAGES

FINDING = "finding.json"
TRACKERS = {
    "lm-format-enforcer": "https://github.com/noamgat/lm-format-enforcer/issues",
    "xgrammar": "https://github.com/mlc-ai/xgrammar/issues",
    "llguidance": "https://github.com/guidance-ai/llguidance/issues",
    "outlines": "https://github.com/dottxt-ai/outlines-core/issues",
}
"""Issue tracker of each backend: the upstream of a finding that has not been reported yet."""
VLLM = "https://github.com/vllm-project/vllm/issues"


def draft_from_file(path: Path, draft: Draft) -> tuple[Draft, str, str, str]:
    """Return the draft filled from a finding's file, the finding's name, the tracker where it
    belongs, and its report (empty if there is none).

    Raises ``UsageError`` for a file that is no finding from which a case can be made.
    """
    if is_api_finding(load_json(path, MAX_BYTES, what="a finding")):
        answer = load_api_finding(path)
        return draft_from_api_finding(answer, draft), answer.name, VLLM, ""
    artefact = load(path)
    return (
        draft_from_finding(artefact, draft),
        artefact.name,
        TRACKERS[artefact.backend],
        artefact.upstream,
    )


def draft_from_finding(finding: Artefact, draft: Draft) -> Draft:
    """Fill a draft with the finding's version, environment and problem. Fields that the draft
    already sets stay as they are.

    Raises ``UsageError`` if neither names affected versions.
    """
    package = PACKAGES.get(finding.backend, finding.backend)
    problem = finding.problem
    affected = draft.affected
    if affected == Draft.affected:
        if package not in finding.versions:
            raise UsageError(
                f"{finding.name}: versions has no {package}, so that the affected versions are unknown. Give them with --affected"
            )
        affected = f"=={finding.versions[package]}"
    return dataclasses.replace(
        draft,
        title=draft.title or f"{finding.backend}: {problem.outcome} ({problem.key})",
        family="structured-output",
        package=draft.package or package,
        affected=affected,
        phase="probe",
        pattern=re.escape(f"{problem.outcome} ({problem.key})").replace("\\ ", " "),
        affected_env=draft.affected_env or _environments(finding),
        front="finding",
        devices=("none", *DEVICES),
        files={FINDING: finding.text()},
    )


def draft_from_api_finding(finding: ApiFinding, draft: Draft) -> Draft:
    """Fill a draft with the version, environment, problem and request of a finding about a server's
    API."""
    if finding.question.server != "text":
        raise UsageError(
            f"{finding.name}: a case is drafted for the server text only, not for {finding.question.server}: begin with new --front serve"
        )
    deadly = finding.problem.outcome in (
        Outcome.ENGINE_DEAD,
        Outcome.ENGINE_STUCK,
        Outcome.OUT_OF_MEMORY,
    )
    version = finding.versions.get("vllm", "")
    if draft.affected == Draft.affected and not version:
        raise UsageError(
            f"{finding.name}: versions has no vllm. Give the affected versions with --affected"
        )
    return dataclasses.replace(
        draft,
        title=draft.title
        or f"{finding.question.method} {finding.question.route}: {finding.problem.outcome}",
        family=draft.family or ("engine-death" if deadly else "wrong-status"),
        package="vllm",
        affected=draft.affected if draft.affected != Draft.affected else f"=={version}",
        kind="engine-death" if deadly else draft.kind,
        front="request",
        affected_env=draft.affected_env or _environments(finding),
        files={FINDING: finding.text()},
    )


def _environments(finding: Artefact | ApiFinding) -> tuple[str, ...]:
    """Return the environment of the finding, unless a file must not choose it."""
    try:
        recipe_named_by_file(finding.environment)
    except UsageError:
        return ()
    return (finding.environment,)
