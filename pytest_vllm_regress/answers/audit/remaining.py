"""What of a matrix is still to be run, by the table of verdicts beside the cases."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from ...cases.model import Case
from ...cases.proofs.fingerprint import case_fingerprint, code_fingerprint
from ...cases.proofs.proof import recorded_proof
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
    """Return whether the case's present test has a clear verdict in an environment.

    A verdict of a proof counts as long as the proof is not stale. Without its cause, NOT_APPLICABLE
    is not clear.
    """
    codes: set[str | None] = {code_fingerprint(case.directory)}
    proof = recorded_proof(case)
    if proof is not None and proof.fingerprint == case_fingerprint(case):
        codes.add(None)
    return any(
        entry.environment == environment and entry.is_clear and entry.code in codes
        for entry in table.of_case(case.id)
    )
