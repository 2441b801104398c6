"""What users would have of the recorded observations: pytest's output, and the tail of a dossier."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.proofs.rejudge import load_observations
from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.errors import Part

PARTS = (Part.EXIT, Part.TRACEBACK, Part.EXCEPTION, Part.STACKS, Part.LOG)


@functools.cache
def observations(case: Case) -> tuple[RunResult, ...]:
    """Return what the tests of a case saw. Secrets in it are looked for once, which takes longest."""
    return load_observations(case)


def recorded(cases: tuple[Case, ...], *verdicts: Verdict) -> Iterator[TestResult]:
    """Yield the recorded results with these verdicts that have an observation."""
    for case in cases:
        for run in observations(case):
            yield from (
                result
                for result in run.results
                if result.observation and result.verdict in verdicts
            )


def pytest_output(result: TestResult, *, versions: bool) -> bytes:
    """Return the result as pytest prints it: the failure and its parts, each line after an E.

    ``versions``: after a `pip freeze`.
    """
    assert result.observation is not None
    parts = result.observation.parts
    error = f"pytest_vllm_regress.errors.ChildError: {result.observation.summary}"
    assertion = parts.get(Part.ASSERTION)
    lines = [
        f"AssertionError: {assertion}" if assertion else error,
        *(parts[part] for part in PARTS if part in parts),
    ]
    freeze = [f"{name}=={version}" for name, version in result.versions.items()] if versions else []
    return "\n".join(
        [*freeze, *(f"E   {line}" for text in lines for line in text.splitlines()), ""]
    ).encode()
