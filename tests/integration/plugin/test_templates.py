"""Templates of new cases: pytest collects each of them, and the template with a probe runs
unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.cases.observation import FAILURES
from pytest_vllm_regress.cases.proofs import proof
from pytest_vllm_regress.cases.results import read_results
from pytest_vllm_regress.cases.scaffold import (
    OUTSIDE_REQUESTS,
    TEMPLATES,
    Draft,
    GitHubReport,
    create_case,
    phases_of,
)
from pytest_vllm_regress.cases.verdict import Verdict

FRONTS = tuple(name for name in TEMPLATES if name != "finding")


def test_every_template_is_collected(pytester: pytest.Pytester, affected_target: Path) -> None:
    root = pytester.mkdir("cases")
    phases = [*((front, "") for front in FRONTS), *(("serve", phase) for phase in OUTSIDE_REQUESTS)]
    drafts = [
        Draft(front=front, phase=phase, kind=kind)
        for front, phase in phases
        for kind in FAILURES
        if not phase or phase in phases_of(front, kind)
    ]
    for number, draft in enumerate(drafts):
        create_case(root, GitHubReport("a/b", number), draft)
    result = pytester.runpytest_inprocess(
        "--collect-only", "-q", f"--vllm-env={affected_target}", root
    )
    assert result.ret == 0
    result.stdout.fnmatch_lines([f"*{len(drafts)} tests collected*"])


def test_what_passes_everywhere_says_so_with_its_mechanism_at_work(
    pytester: pytest.Pytester, affected_target: Path
) -> None:
    cases = [
        create_case(
            pytester.path,
            GitHubReport("a/b", number),
            Draft(front="probe", kind=kind, package="vllm"),
        )
        for number, kind in enumerate(FAILURES)
    ]
    report = pytester.path / "report.json"
    folders = [case.directory for case in cases]
    pytester.runpytest_inprocess(
        f"--vllm-env={affected_target}", f"--vllm-report={report}", *folders
    )
    for case, result in zip(cases, read_results(report).results, strict=True):
        assert (result.case_id, result.verdict) == (case.id, Verdict.UNEXPECTEDLY_FIXED)
        assert proof.tests_without_mechanism(case, [result]) == []
        assert result.observation is not None
        assert result.observation.at_work[0].what == "the probe finds the package"
