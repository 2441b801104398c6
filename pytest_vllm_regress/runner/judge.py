"""Apply the expectations of a batch to its results.

Done once, where the run was started, whatever machine ran the batch.
"""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from ..cases.proofs.proof import EXPECTED_VERDICTS
from ..cases.results import RunResult, TestResult
from ..cases.verdict import combine
from .batch import Batch, RunOptions


def apply_expectations(run: RunResult, batch: Batch, options: RunOptions) -> RunResult:
    """Add to each result the command that repeats it, and mark results that contradict the case's
    role in this environment."""
    return dataclasses.replace(
        run,
        results=tuple(_judge_result(result, run.results, batch, options) for result in run.results),
    )


def _judge_result(
    result: TestResult, results: tuple[TestResult, ...], batch: Batch, options: RunOptions
) -> TestResult:
    result = replace(result, command=options.repeat_command(result.case_id, result.environment))
    role = batch.roles.get(result.case_id)
    if role is None:
        return result
    expected = EXPECTED_VERDICTS[role]
    # The verdict of the case counts: a variant that is not affected does not contradict the
    # evidence.
    case_verdict = combine(other.verdict for other in results if other.case_id == result.case_id)
    if case_verdict is expected or not result.expected or result.verdict is not case_verdict:
        return result
    because = f"{batch.environment} is evidence that the case is {expected.value}, and it was {case_verdict.value}"
    return replace(result, not_expected_because=because)
