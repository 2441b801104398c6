"""Draft a case from a finding."""

from __future__ import annotations

import dataclasses
import re

from ..cases.new.scaffold import DEVICES, Draft
from ..environments.names import recipe_named_by_file
from ..errors import UsageError
from .artefact import Artefact
from .checker import PACKAGES

FINDING = "finding.json"
TRACKERS = {
    "lm-format-enforcer": "https://github.com/noamgat/lm-format-enforcer/issues",
    "xgrammar": "https://github.com/mlc-ai/xgrammar/issues",
    "llguidance": "https://github.com/guidance-ai/llguidance/issues",
    "outlines": "https://github.com/dottxt-ai/outlines-core/issues",
}
"""Issue tracker of each backend: the upstream of a finding that has not been reported yet."""


def draft_from_finding(finding: Artefact, draft: Draft) -> Draft:
    """Fill a draft with the finding's version, environment and problem. Fields that the draft already sets stay as they are.

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


def _environments(finding: Artefact) -> tuple[str, ...]:
    """Return the environment of the finding, unless a file must not choose it."""
    try:
        recipe_named_by_file(finding.environment)
    except UsageError:
        return ()
    return (finding.environment,)
