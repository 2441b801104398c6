"""Every case has a clear verdict on every release, or there is a written excuse."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from pytest_vllm_regress.answers.audit.verdict_table import Recorded, VerdictTable, read_table
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.environments.releases import known_releases
from pytest_vllm_regress.errors import Cause
from tests.helpers.cases import CaseFile, project_cases
from tools import sweeps
from tools.sweeps import Excuses, Inconclusive

NOTHING = Excuses()
OLD, NEW = known_releases("vllm")[-2:]


def test_every_case_was_run_on_every_release() -> None:
    cases = project_cases()
    found = sweeps.gaps(cases, read_table(cases), known_releases("vllm"))
    assert list(sweeps.problems(found, sweeps.read_excuses())) == []


def problems(
    tmp_path: Path, excuses: Excuses, on_new: Recorded | None, device: str = "sim"
) -> list[str]:
    """Return the problems of a case that was run on 0.6.6, OLD and, with this result, on NEW."""
    case = CaseFile("one", devices=(device,)).write(tmp_path)
    rows = [Recorded(f"vllm-{OLD}", "sim", Verdict.FIXED, "2026-01-01"), on_new]
    table = VerdictTable({"one": [row for row in rows if row]}, {})
    return list(sweeps.problems(sweeps.gaps([case], table, [Version("0.6.6"), OLD, NEW]), excuses))


def on_new(verdict: Verdict, cause: Cause | None = None) -> Recorded:
    return Recorded(f"vllm-{NEW}", "sim", verdict, "2026-01-01", cause=cause)


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (None, f"one was not run on {NEW}: `vllm-regress matrix"),
        (on_new(Verdict.NOT_APPLICABLE), f"one was not run on {NEW}: `vllm-regress matrix"),
        (on_new(Verdict.INCONCLUSIVE), f"one is INCONCLUSIVE on {NEW}, and nothing says why"),
    ],
)
def test_a_release_without_a_clear_verdict_is_a_problem(
    result: Recorded | None, problem: str, tmp_path: Path
) -> None:
    (found,) = problems(tmp_path, NOTHING, result)
    assert found.startswith(problem)
    assert problems(tmp_path, NOTHING, result, device="gpu") == []


@pytest.mark.parametrize(
    "result", [on_new(Verdict.REPRODUCED), on_new(Verdict.NOT_APPLICABLE, Cause.RELEASE)]
)
def test_a_clear_verdict_is_none(result: Recorded, tmp_path: Path) -> None:
    assert problems(tmp_path, NOTHING, result) == []


def test_an_excuse_must_be_needed(tmp_path: Path) -> None:
    unclear = Excuses({"one": Inconclusive(SpecifierSet(f"=={NEW}"), "it waits")})
    assert problems(tmp_path, unclear, on_new(Verdict.INCONCLUSIVE)) == []
    found = problems(tmp_path, unclear, on_new(Verdict.FIXED))
    assert found == ["unclear.toml: one needs no excuse any more"]
