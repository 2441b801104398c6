"""Results of a batch: expectations applied, and INCONCLUSIVE results for cases that no test gave a
result for."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from collections.abc import Sequence

from ..cases.model import Case
from ..cases.proofs.proof import EXPECTED_VERDICTS
from ..cases.results import RunResult, TestResult
from ..cases.verdict import Verdict, combine
from ..errors import BuildError
from ..util import codec
from .batch import Batch, RunOptions

_UNEXPLAINED = "pytest failed, but no verdict says why: see its output above"
_NOTHING_ON_GPU = "nothing was shown on a GPU: every case was NOT_APPLICABLE"
_EXIT_STATUS = {
    2: "was interrupted",
    3: "had an internal error",
    4: "refused its arguments",
    5: "found no test",
}


def apply_expectations(run: RunResult, batch: Batch, options: RunOptions) -> RunResult:
    """Add to each result the command that repeats it, and mark results that contradict the case's
    role in this environment.

    Done once, where the run was started, whatever machine ran the batch.
    """
    return dataclasses.replace(
        run,
        results=tuple(_judge_result(result, run.results, batch, options) for result in run.results),
    )


def _judge_result(
    result: TestResult, results: tuple[TestResult, ...], batch: Batch, options: RunOptions
) -> TestResult:
    result = codec.replace(
        result, command=options.repeat_command(result.case_id, result.environment)
    )
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
    return codec.replace(result, not_expected_because=because)


def inconclusive_results(batch: Batch, cases: Sequence[Case], why: str) -> tuple[TestResult, ...]:
    """Return an INCONCLUSIVE result for each of these cases of the batch."""
    return tuple(
        TestResult(
            case_id=case.id,
            test=f"{case.directory.name} (no test)",
            verdict=Verdict.INCONCLUSIVE,
            reason=why,
            device="unknown",
            environment=batch.environment,
            started_at=time.time(),
        )
        for case in cases
    )


def not_built(batch: Batch, error: BuildError) -> RunResult:
    """Return the results of a batch whose environment could not be built.

    The reason is a problem of the run, shown once.
    """
    why = "the environment could not be built: see the problem below"
    return RunResult(
        inconclusive_results(batch, batch.cases, why), (f"{batch.environment}: {error}",)
    )


def interruption_note(batch: Batch) -> RunResult:
    """Return the problem that cases of an interrupted batch have no verdict."""
    return RunResult(
        (),
        (f"{batch.environment}: interrupted; only cases whose tests had all ended have a verdict",),
    )


def with_missing_cases(
    batch: Batch, reported: RunResult, status: int, unreadable: str = "", output: str = ""
) -> RunResult:
    """Return what pytest reported of the batch's own cases, with an INCONCLUSIVE result for each
    case that is missing.

    After an exit status other than 0 and 1 every case gets one, because tests that are missing
    cannot be told from tests that do not exist.
    ``unreadable``: why the report is missing or cannot be read. ``output``: the end of pytest's
    output, if it is not above.
    """
    case_ids = {case.id for case in batch.cases}
    results = tuple(result for result in reported.results if result.case_id in case_ids)
    missing, problems = batch.cases, reported.problems
    why = f"pytest {_describe(status)}"
    if status in (0, 1):
        missing = batch.without({result.case_id for result in results}).cases
        unreadable = unreadable or " and reported nothing for this case"
    excerpt = f". Its output ends with: {output}" if output else ": see its output above"
    if status == 1 and not missing and all(result.expected for result in results):
        on_gpu = all(
            result.device == "gpu" and result.verdict is Verdict.NOT_APPLICABLE
            for result in results
        )
        problems += (f"{batch.environment}: {_NOTHING_ON_GPU if on_gpu else _UNEXPLAINED}",)
    return RunResult(
        results + inconclusive_results(batch, missing, why + unreadable + excerpt), problems
    )


def _describe(status: int) -> str:
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-status).name}"
    return _EXIT_STATUS.get(status, f"ended with status {status}")
