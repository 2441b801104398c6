"""How often a failure that depends on timing shows, and how often a test must run to show it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import UsageError
from ..util.paths import cache_root
from .model import Case
from .proofs.fingerprint import code_fingerprint
from .results import TestResult, read_results

CONFIDENCE = 0.99
MAX_TRIALS = 100
_MAX_COPY = 8 * 1024 * 1024
"""Bytes of a result file of an earlier run that is read: larger ones are of whole collections."""


@dataclass(frozen=True)
class Rate:
    """How often runs of one test in one environment showed the failure: in ``shown`` of ``runs``."""

    case_id: str
    environment: str
    shown: int
    runs: int

    @property
    def trials(self) -> int:
        """The trials after which the failure has shown at least once with 99 % certainty."""
        if self.shown >= self.runs:
            return 1
        if not self.shown:
            return MAX_TRIALS
        needed = math.log(1 - CONFIDENCE) / math.log(1 - self.shown / self.runs)
        return min(math.ceil(needed), MAX_TRIALS)

    def __str__(self) -> str:
        return (
            f"{self.case_id} in {self.environment}: the failure showed in {self.shown} of {self.runs} runs of one test, "
            f"so it depends on timing; {self.trials} trials show it with 99 % certainty"
        )


def unsteady(results: Iterable[TestResult]) -> tuple[Rate, ...]:
    """Return the rates of tests that showed the failure in some runs and passed in others."""
    runs: dict[tuple[str, str, str, str], list[bool]] = {}
    for result in results:
        if result.verdict.shown is not None:
            key = (result.case_id, result.environment, result.device, result.test)
            runs.setdefault(key, []).append(result.verdict.shown)
    return tuple(
        Rate(case_id, environment, sum(shown), len(shown))
        for (case_id, environment, _, _), shown in runs.items()
        if 0 < sum(shown) < len(shown)
    )


def recent_results(cases: Sequence[Case]) -> list[TestResult]:
    """Return what the last runs on this machine, of any command, gave for the present code of these
    cases, the oldest first."""
    by_id = {case.id: case for case in cases}
    results: list[TestResult] = []
    for file in sorted((cache_root() / "results").glob("*.json")):
        with contextlib.suppress(OSError, UsageError):  # of another format, or removed meanwhile
            if file.stat().st_size <= _MAX_COPY:
                results += read_results(file, by_id.keys()).results
    codes = {name: code_fingerprint(by_id[name].directory) for name in {r.case_id for r in results}}
    return [result for result in results if result.code == codes[result.case_id]]
