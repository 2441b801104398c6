"""Find releases on which a case has no clear verdict, and compare them with the excuses in
docs/records/unclear.toml."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from pytest_vllm_regress.answers.audit.verdict_table import VerdictTable
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.util.codec import Document, load

RECORD = Path(__file__).parents[1] / "docs" / "records" / "unclear.toml"
COVERED = SpecifierSet(">=0.7")
"""Releases of vLLM that have a device for engines."""
RUN_IT = (
    "`vllm-regress matrix CASE --releases '>=0.7' --only missing --out all.json`, then "
    "`vllm-regress report all.json --write`"
)


class Inconclusive(Document, frozen=True):
    """Why a case decides nothing on these releases."""

    releases: SpecifierSet
    reason: str


class Excuses(Document, frozen=True):
    """The record. ``inconclusive``: by case."""

    inconclusive: Mapping[str, Inconclusive] = {}


def read_excuses() -> Excuses:
    """Return the record."""
    return load(Excuses, RECORD, 100_000, what="a record of unclear verdicts")


@dataclass(frozen=True)
class Gap:
    """A release on which a case has no clear verdict. ``inconclusive``: whether it was run there."""

    case_id: str
    release: Version
    inconclusive: bool


def gaps(cases: Sequence[Case], table: VerdictTable, releases: Sequence[Version]) -> Iterator[Gap]:
    """Yield the gaps on the covered ones of these releases.

    Cases that need a GPU are left out. NOT_APPLICABLE without its cause counts as not run.
    """
    for case in cases:
        if case.devices == ("gpu",):
            continue
        recorded = table.of_case(case.id)
        clear = {entry.environment for entry in recorded if entry.is_clear}
        inconclusive = {e.environment for e in recorded if e.verdict is Verdict.INCONCLUSIVE}
        for release in COVERED.filter(releases):
            if (name := f"vllm-{release}") not in clear:
                yield Gap(case.id, release, name in inconclusive)


def problems(found: Iterable[Gap], excuses: Excuses) -> Iterator[str]:
    """Yield the gaps without an excuse, and the excuses without a gap."""
    reasons = set()
    for gap in found:
        reason = excuses.inconclusive.get(gap.case_id)
        if gap.inconclusive and reason and gap.release in reason.releases:
            reasons.add(gap.case_id)
        elif gap.inconclusive:
            yield f"{gap.case_id} is INCONCLUSIVE on {gap.release}, and nothing says why"
        else:
            yield f"{gap.case_id} was not run on {gap.release}: {RUN_IT}"
    for name in sorted(set(excuses.inconclusive) - reasons):
        yield f"{RECORD.name}: {name} needs no excuse any more"
