"""Impostors as data: what floods a log, what a trial says, and how they are counted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_vllm_regress.cases import impostors
from pytest_vllm_regress.cases.impostors import Impostor, Trial
from pytest_vllm_regress.cases.model import find_cases
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.errors import UsageError
from tests.helpers import ROOT

CASES = find_cases(ROOT / "cases")
PATTERNS = ("a+b?c{2,3}", "(?:x|y)[0-9][^q]\\w\\s", '^File "[^"]*", line \\d+$', "(?i:abc)|d", "(?P<a>.)z")


def trial(verdict: Verdict, impostor: Impostor = Impostor.ENGINE_KILLED, environment: str = "old") -> Trial:
    return Trial("demo", environment, "test_x.py::test", impostor, verdict, "why")


@pytest.mark.parametrize("pattern", [*PATTERNS, *(case.symptom.pattern for case in CASES)])
def test_a_sample_is_matched_by_its_pattern(pattern: str) -> None:
    assert re.search(pattern, impostors.sample(pattern), re.MULTILINE)
    assert impostors.sample(pattern)


def test_a_pattern_that_no_simple_text_matches_has_no_sample() -> None:
    assert impostors.sample("(?!x)x") == ""


def test_a_flood_is_of_other_cases_only() -> None:
    for case in CASES:
        text = impostors.flood(case, CASES)
        assert len(text.splitlines()) > 10
        assert not re.search(case.symptom.pattern, text, re.MULTILINE)


@pytest.mark.parametrize(
    ("verdict", "impostor", "fault"),
    [
        (Verdict.REPRODUCED, Impostor.ENGINE_KILLED, "old: an impostor (engine killed) earned REPRODUCED: why"),
        (Verdict.REGRESSED, Impostor.FLOODED_LOG, "old: an impostor (flooded log) earned REGRESSED: why"),
        (Verdict.FIXED, Impostor.EMPTY_ANSWER, "old: test_x.py::test passes on empty answers: it asserts too little"),
        (Verdict.FIXED, Impostor.ERROR_STATUS, ""),
        (Verdict.INCONCLUSIVE, Impostor.EMPTY_ANSWER, ""),
    ],
)
def test_what_a_trial_says(verdict: Verdict, impostor: Impostor, fault: str) -> None:
    assert trial(verdict, impostor).fault == fault


def test_counted_by_environment() -> None:
    trials = [
        trial(Verdict.INCONCLUSIVE),
        trial(Verdict.INCONCLUSIVE),  # the same again
        trial(Verdict.INCONCLUSIVE, Impostor.FLOODED_LOG),
        trial(Verdict.REGRESSED, environment="new"),
        Trial("another", "old", "t", Impostor.EMPTY_ANSWER, Verdict.INCONCLUSIVE, ""),
    ]
    assert impostors.counted(trials, "demo") == {"old": 2, "new": 0}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    trials = (trial(Verdict.INCONCLUSIVE), trial(Verdict.REGRESSED, Impostor.ERROR_STATUS))
    impostors.write(tmp_path / "met.json", trials)
    assert impostors.read(tmp_path / "met.json") == trials


@pytest.mark.parametrize("content", ["", "[1]", '[{"case": "x"}]', '{"a": 1}'])
def test_anything_else_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "met.json").write_text(content)
    with pytest.raises(UsageError, match="no record of impostors"):
        impostors.read(tmp_path / "met.json")
