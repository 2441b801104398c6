"""What of a matrix is still to be run, by the table of verdicts beside the cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

from ...cases.model import Case
from ...cases.proofs.fingerprint import code_fingerprint
from ...cases.verdict import Verdict
from ...errors import UsageError
from ...runner.batch import Batch
from .boundaries import boundaries
from .verdict_table import read_table


class Only(StrEnum):
    """Which part of a matrix to run."""

    BOUNDARIES = "boundaries"
    MISSING = "missing"


def remaining(
    cases: Sequence[Case], batches: Sequence[Batch], only: Sequence[Only]
) -> tuple[Batch, ...]:
    """Return the batches with only the cases that these parts have.

    Raises ``UsageError`` if nothing is left.
    """
    left = tuple(batches)
    for part in dict.fromkeys(only):
        wanted = _undecided(cases) if part is Only.BOUNDARIES else _without_verdict(cases)
        reduced = [
            batch.only({case.id for case in batch.cases if wanted(batch.environment, case.id)})
            for batch in left
        ]
        left = tuple(batch for batch in reduced if batch.cases)
        if not left:
            has = (
                "every end of a range among these releases"
                if part is Only.BOUNDARIES
                else "a clear one for every case in these environments"
            )
            raise UsageError(f"--only {part.value}: the table of verdicts has {has}")
    return left


def _undecided(cases: Sequence[Case]) -> Callable[[str, str], bool]:
    """Say whether an environment's release is one that an end of the case's range still needs."""
    table = read_table(cases)
    ends = [end for case in cases for end in boundaries(case, table)]
    missing = {(f"{end.package}-{version}", end.case_id) for end in ends for version in end.missing}
    return lambda environment, case_id: (environment, case_id) in missing


def _without_verdict(cases: Sequence[Case]) -> Callable[[str, str], bool]:
    """Say whether the case's present test has no clear verdict in an environment."""
    table = read_table(cases)
    codes = {case.id: code_fingerprint(case.directory) for case in cases}
    clear = {
        (entry.environment, case.id)
        for case in cases
        for entry in table.of_case(case.id)
        if entry.verdict is not Verdict.INCONCLUSIVE and entry.code in (None, codes[case.id])
    }
    return lambda environment, case_id: (environment, case_id) not in clear
