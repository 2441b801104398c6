"""What of a matrix is still to be run, by the table of verdicts beside the cases."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from ...cases.model import Case
from ...cases.proofs.fingerprint import code_fingerprint
from ...cases.verdict import Verdict
from ...errors import UsageError
from ...runner.batch import Batch
from .boundaries import boundaries
from .verdict_table import VerdictTable, read_table


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
    table, left = read_table(cases), tuple(batches)
    for part in dict.fromkeys(only):
        if part is Only.BOUNDARIES:
            has = "every end of a range among these releases"
            missing = {
                (f"{end.package}-{version}", case.id)
                for case in cases
                for end in boundaries(case, table)
                for version in end.missing
            }
        else:
            has = "a clear one for every case in these environments"
            missing = {
                (batch.environment, case.id)
                for batch in left
                for case in batch.cases
                if not _has_verdict(table, case, batch.environment)
            }
        reduced = [
            batch.only({case.id for case in batch.cases if (batch.environment, case.id) in missing})
            for batch in left
        ]
        left = tuple(batch for batch in reduced if batch.cases)
        if not left:
            raise UsageError(f"--only {part.value}: the table of verdicts has {has}")
    return left


def _has_verdict(table: VerdictTable, case: Case, environment: str) -> bool:
    """Return whether the case's present test has a clear verdict in an environment."""
    codes = (None, code_fingerprint(case.directory))
    return any(
        entry.environment == environment
        and entry.verdict is not Verdict.INCONCLUSIVE
        and entry.code in codes
        for entry in table.of_case(case.id)
    )
