"""Impostors as data: the text of a flooded log, the outcome of a trial, and counting."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from pytest_vllm_regress.cases.proofs import impostors
from pytest_vllm_regress.cases.proofs.impostors import Impostor, ImpostorRun
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.errors import UsageError
from tests.helpers.cases import project_cases

CASES = project_cases()
PATTERNS = (
    "a+b?c{2,3}",
    "(?:x|y)[0-9][^q]\\w\\s",
    '^File "[^"]*", line \\d+$',
    "(?i:abc)|d",
    "(?P<a>.)z",
)


def trial(
    verdict: Verdict, impostor: Impostor = Impostor.ENGINE_KILLED, environment: str = "old"
) -> ImpostorRun:
    return ImpostorRun("demo", environment, "test_x.py::test", impostor, verdict, "why")


@pytest.mark.parametrize("pattern", [*PATTERNS, *(case.symptom.pattern for case in CASES)])
def test_sample_text_matches_its_pattern(pattern: str) -> None:
    assert re.search(pattern, impostors.sample_match(pattern), re.MULTILINE)
    assert impostors.sample_match(pattern)


def test_no_sample_for_a_pattern_without_simple_match() -> None:
    assert impostors.sample_match("(?!x)x") == ""


def test_unrelated_log_matches_only_other_cases() -> None:
    for case in CASES:
        text = impostors.unrelated_log(case, CASES)
        assert len(text.splitlines()) > 10
        assert not re.search(case.symptom.pattern, text, re.MULTILINE)


@pytest.mark.parametrize(
    ("verdict", "impostor", "fault"),
    [
        (
            Verdict.REPRODUCED,
            Impostor.ENGINE_KILLED,
            "old: an impostor (engine killed) produced REPRODUCED, so another failure passes for this one: why",
        ),
        (
            Verdict.REGRESSED,
            Impostor.FLOODED_LOG,
            "old: an impostor (flooded log) produced REGRESSED, so another failure passes for this one: why",
        ),
        (
            Verdict.FIXED,
            Impostor.EMPTY_ANSWER,
            "old: test_x.py::test passes with empty answers: it asserts too little",
        ),
        (Verdict.FIXED, Impostor.ERROR_STATUS, ""),
        (Verdict.INCONCLUSIVE, Impostor.EMPTY_ANSWER, ""),
    ],
)
def test_trial_problem_by_verdict_and_impostor(
    verdict: Verdict, impostor: Impostor, fault: str
) -> None:
    assert trial(verdict, impostor).flaw == fault


def test_trials_survive_a_round_trip(tmp_path: Path) -> None:
    trials = (trial(Verdict.INCONCLUSIVE), trial(Verdict.REGRESSED, Impostor.ERROR_STATUS))
    impostors.write_impostor_runs(tmp_path / "met.json", trials)
    assert impostors.read_impostor_runs(tmp_path / "met.json") == trials


@pytest.mark.parametrize("content", ["", "[1]", '[{"case": "x"}]', '{"a": 1}'])
def test_invalid_files_are_rejected(tmp_path: Path, content: str) -> None:
    (tmp_path / "met.json").write_text(content)
    with pytest.raises(UsageError, match=r"met\.json: "):
        impostors.read_impostor_runs(tmp_path / "met.json")


def test_the_replaced_calls_are_named() -> None:
    run = dataclasses.replace(
        trial(Verdict.REPRODUCED, Impostor.ERROR_STATUS),
        replaced=("POST /v1/completions", "GET /health", "POST /v1/completions"),
    )
    assert run.flaw.startswith(
        "old: an impostor (error status) in place of the answer to POST /v1/completions (2 times), "
        "GET /health produced REPRODUCED, so another failure passes for this one: "
    )
