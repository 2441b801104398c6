"""Verdicts given anew from what was stored, after a change of a case's kind, pattern, parts or range. Runs nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ..errors import Kind
from .judgement import judge
from .model import Case
from .observation import Observation
from .proof import code_fingerprint
from .results import RunResult, TestResult, merge


@dataclasses.dataclass(frozen=True)
class JudgedAgain:
    """A stored result, the same with the verdict of the case as it stands, and why what was seen may not be believed (else empty)."""

    before: TestResult
    now: TestResult
    stale: str = ""

    @property
    def changed(self) -> bool:
        return self.before.verdict is not self.now.verdict


def judge_again(case: Case, stored: Iterable[RunResult]) -> tuple[JudgedAgain, ...]:
    """The latest result of every test of the case, environment and device, judged by the case as it stands."""
    code = code_fingerprint(case.directory)
    latest = merge(stored).results
    return tuple(_again(case, code, result) for result in latest if result.case_id == case.id)


def _again(case: Case, code: str, result: TestResult) -> JudgedAgain:
    if result.observation is None or not result.versions:
        return JudgedAgain(result, result, "no observation was stored: run it again")
    if result.variant is not None and result.variant not in case.variants:
        return JudgedAgain(result, result, f"the case has no variant {result.variant} any more: run it again")
    decision = judge(case, result.variant, result.versions, result.observation, _control(result))
    now = dataclasses.replace(
        result, verdict=decision.verdict, reason=decision.reason, match=decision.match, not_expected_because=""
    )
    stale = "" if result.code == code else "a test or probe of the case has changed since it was seen: run it again"
    return JudgedAgain(result, now, stale)


def _control(result: TestResult) -> Observation | None:
    """The control leg, as far as its verdict goes."""
    if not result.control:
        return None
    passed = result.control == "passed"
    return Observation(Kind.PASSED if passed else Kind.EXCEPTION, "test", f"the control leg {result.control} then")
