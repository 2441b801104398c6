"""The answer of ``audit``: the documented failures of one inventory, what a deployment can show of
them, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from ...cases.model import Case
from ...environments.installed import VLLM
from ...errors import UsageError
from ...util.validation import did_you_mean, format_value
from ...util.versions import is_version, version_of
from ..deployments.relevance import Reach, Relevance, relevance
from ..sarif import SarifResult, SarifRule
from ..sarif import to_sarif as log_of
from .boundaries import observation
from .features import lacks_feature
from .matching import (
    NO_VLLM,
    AuditMatch,
    Inventory,
    find,
    notes,
    relevant,
    severity,
    unknown_packages,
)
from .recorded import of_unknown_packages
from .upgrades import UpgradeAdvice, better
from .verdict_table import read_table

if TYPE_CHECKING:
    from ..deployments.configuration import Deployment
    from .preflight import Concern, Host
    from .start import StartCheck


@dataclass(frozen=True)
class Audit:
    """Findings in one target, gravest first.

    ``versions``: of the packages that the cases are about.
    ``concerns``: from the preflight.
    ``notes``: what could not be decided.
    ``ignored``: ids that were found and do not count.
    ``relevance``: by id, whether a deployment can show the failure; empty if none was given.
    ``better``: which release to switch to.
    ``start``: whether the deployment starts; None without one, or if nothing is known of the
    release.
    """

    source: str
    versions: dict[str, str]
    findings: tuple[AuditMatch, ...]
    concerns: tuple[Concern, ...]
    notes: tuple[str, ...]
    ignored: tuple[str, ...]
    relevance: Mapping[str, Relevance]
    better: UpgradeAdvice | None = None
    start: StartCheck | None = None

    @property
    def clean(self) -> bool:
        """Whether there are no findings that the deployment can show, no concerns that count, and
        nothing because of which it does not start."""
        refused = self.start is not None and self.start.refused
        return not (self.counted or refused or any(c.counts for c in self.concerns))

    @property
    def counted(self) -> tuple[AuditMatch, ...]:
        """The findings without those that the deployment cannot show."""
        return tuple(
            finding
            for finding in self.findings
            if self.reach_of(finding) is not Reach.NOT_REACHABLE
        )

    def reach_of(self, finding: AuditMatch) -> Reach:
        """Return whether the deployment can show the failure; unknown without a deployment."""
        answer = self.relevance.get(finding.case.id)
        return answer.reach if answer else Reach.UNKNOWN

    @property
    def headline(self) -> str:
        """Return how many failures were found; with a deployment how many of them it can show."""
        number = len(self.findings)
        if not self.relevance:
            return f"{number or 'no'} documented failure{'' if number == 1 else 's'}"
        counts = Counter(self.reach_of(finding) for finding in self.findings)
        shown = counts[Reach.REACHABLE]
        return (
            f"{shown or 'no'} documented failure{'' if shown == 1 else 's'} that this deployment can "
            f"reach, {counts[Reach.UNKNOWN]} unknown; {counts[Reach.NOT_REACHABLE]} not reachable"
        )

    def to_json(self) -> dict[str, Any]:
        relevance = {name: {"relevance": answer} for name, answer in self.relevance.items()}
        return {
            "source": self.source,
            "versions": self.versions,
            "findings": [f.to_json() | relevance.get(f.case.id, {}) for f in self.findings],
            "better": self.better,
            "start": self.start,
            "preflight": [concern.to_json() for concern in self.concerns],
            "notes": self.notes,
            "ignored": self.ignored,
        }


def audit(
    inventory: Inventory,
    cases: Sequence[Case],
    host: Host | None,
    ignore: Collection[str],
    deployments: Sequence[Deployment] = (),
) -> Audit:
    """Match ``inventory`` with ``cases``, and rank the findings by what ``deployments`` can show,
    if there are any.

    With ``host`` also run the preflight, which raises ``UsageError`` for a mere list of packages.
    """
    concerns = _preflight(inventory, host) if host is not None else ()
    in_range = find(inventory, cases)
    open_cases = [case for case in cases if inventory.release and unknown_packages(inventory, case)]
    table = read_table([*(finding.case for finding in in_range), *open_cases])
    decided = dict(of_unknown_packages(inventory, open_cases, table))
    found = [
        *(
            replace(f, observed=observation(f.case, f.versions, table))
            for f in in_range
            if not lacks_feature(f.case, f.versions, table)
        ),
        *filter(None, decided.values()),
    ]
    found.sort(key=lambda finding: (severity(finding.case).rank, finding.case.id))
    kept = [finding for finding in found if finding.case.id not in ignore]
    ids = (*(finding.case.id for finding in found), *(concern.id for concern in concerns))
    result = Audit(
        inventory.source,
        relevant(inventory, cases),
        tuple(kept),
        tuple(concern for concern in concerns if concern.id not in ignore),
        (*notes(inventory, cases, list(decided)), *_notes_on(deployments, inventory)),
        ignored=tuple(dict.fromkeys(found_id for found_id in ids if found_id in ignore)),
        relevance={
            finding.case.id: relevance(finding.case, finding.versions, deployments)
            for finding in kept
            if deployments
        },
    )
    return replace(
        result,
        findings=tuple(sorted(kept, key=lambda finding: result.reach_of(finding).rank)),
        better=better(result.counted, [case for case in cases if case.id not in ignore]),
        start=_start(inventory, deployments),
    )


def _start(inventory: Inventory, deployments: Sequence[Deployment]) -> StartCheck | None:
    texts = (text for name in VLLM for text in inventory.versions.get(name, ()))
    release = next((text for text in texts if is_version(text)), "")
    if not deployments or not release:
        return None
    from .start import check_start  # which opens the history

    return check_start(tuple(deployments), release)


def _notes_on(deployments: Sequence[Deployment], inventory: Inventory) -> Iterator[str]:
    texts = (text for name in VLLM for text in inventory.versions.get(name, ()))
    installed = {Version(version.public) for version in map(version_of, texts) if version}
    for place in deployments:
        yield from (f"{place.source}: {note}" for note in place.notes)
        if place.release and installed and Version(place.release) not in installed:
            yield f"{place.source}: the image has vLLM {place.release}, but the audit is of {inventory.source}"


def _preflight(inventory: Inventory, host: Host) -> tuple[Concern, ...]:
    from .preflight import preflight

    if inventory.interpreter is None:
        raise UsageError(
            f"--preflight checks an interpreter and its machine; {inventory.source} is a list of packages"
        )
    return preflight(inventory.interpreter, host)


def check_ignored(ignore: Collection[str], cases: Sequence[Case]) -> None:
    """Raise ``UsageError`` for an id that no case and no check has: it is probably a typo."""
    if not ignore:  # preflight imports what reads GPUs
        return
    from .preflight import CHECKS

    known = [*(case.id for case in cases), *CHECKS, NO_VLLM]
    for ignored_id in ignore:
        if ignored_id not in known:
            raise UsageError(
                f"--ignore {format_value(ignored_id)}: no case and no preflight check has this id.{did_you_mean(ignored_id, known)}"
            )


def to_sarif(audits: Sequence[Audit]) -> dict[str, Any]:
    """Return a SARIF log of all findings and concerns."""
    return log_of([result for audit in audits for result in _results(audit)])


def _results(audit: Audit) -> Iterator[SarifResult]:
    for problem in audit.start.problems if audit.start else ():
        rule = SarifRule(
            "will-not-start", "the release lacks what the deployment names", "", ("vllm",)
        )
        file = Path(problem.source.partition(" (")[0])
        place, level = file if file.exists() else None, "error" if problem.certain else "warning"
        yield SarifResult(rule, level, str(problem), place, max(problem.line, 1), audit.source)
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
