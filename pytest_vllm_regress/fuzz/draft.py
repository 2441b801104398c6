"""The draft of a case from a finding: seen in that version, in that environment, by the words of its problem."""

from __future__ import annotations

import dataclasses
import re

from ..cases.scaffold import Draft
from .artefact import Artefact
from .checker import PACKAGES

FINDING = "finding.json"
TRACKERS = {
    "lm-format-enforcer": "https://github.com/noamgat/lm-format-enforcer/issues",
    "xgrammar": "https://github.com/mlc-ai/xgrammar/issues",
    "llguidance": "https://github.com/guidance-ai/llguidance/issues",
    "outlines": "https://github.com/dottxt-ai/outlines-core/issues",
}
"""Where a backend's failures are reported: the upstream of a finding that has not been reported yet."""


def draft_of(finding: Artefact, draft: Draft) -> Draft:
    """A draft filled from a finding: seen in that version, in that environment, by the words of its problem."""
    package = PACKAGES.get(finding.backend, finding.backend)
    problem = finding.problem
    return dataclasses.replace(
        draft,
        title=draft.title or f"{finding.backend}: {problem.outcome} ({problem.key})",
        family="structured-output",
        package=draft.package or package,
        affected=draft.affected if draft.affected != Draft.affected else f"=={finding.versions[package]}",
        phase="probe",
        pattern=re.escape(f"{problem.outcome} ({problem.key})").replace("\\ ", " "),
        affected_env=draft.affected_env or tuple(name for name in [finding.environment] if "/" not in name),
        front="finding",
        devices=("none", *draft.devices),
        files={FINDING: finding.text()},
    )
