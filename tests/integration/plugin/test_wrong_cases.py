"""Deliberately wrong cases, each of which once got a verdict: every one is refused, or judged
correctly.

1. Words from an earlier log: a pattern (``prefix``) that matches a line of the start, or a line of
another test of a shared engine. 2. A control leg that fails or does not run, in a case that is not
a hang. 3. A typo in an engine argument, mistaken for an argument that the version lacks. 4. A
nonexistent adapter, which the simulated device accepted, and a gap of the simulated device,
mistaken for a failure.
5. Only one side: the mechanism that the case is about was never at work.

``tests/engine/target_site/test_loaders.py`` covers 4 on real engines.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pytest_vllm_regress.cases.loading import load_case
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.proofs import lint, proof
from pytest_vllm_regress.cases.results import read_results
from pytest_vllm_regress.cases.verdict import Verdict, judge_observation
from pytest_vllm_regress.errors import Kind, Part
from tests.integration.plugin.conftest import Demo
from tests.integration.plugin.test_verdicts import run

pytestmark = pytest.mark.slow

SAYS = """
import pytest

@pytest.mark.vllm_case("demo-1")
def test_demo(vllm_probe, vllm_leg):
    vllm_probe("says", words="the documented words")
    if vllm_leg == "subject":
        vllm_probe("raises_other")
"""
AT_WORK = """
import pytest

@pytest.mark.vllm_case("demo-1")
def test_demo(vllm_probe, vllm_leg, vllm_at_work):
    vllm_at_work("eight came", vllm_probe("{function}") == {wanted})
    assert vllm_leg == "control" or vllm_probe("one") == {asserted}, "the documented words"
"""
ABSENT = """
import pytest

@pytest.mark.vllm_case("demo-1")
def test_demo(vllm_probe, vllm_leg, vllm_at_work):
    vllm_at_work("a backend was chosen", vllm_probe("says", words="no backend was found"))
"""
RAISES = """
import pytest

@pytest.mark.vllm_case("demo-1")
def test_demo(vllm_probe, vllm_leg):
    if vllm_leg == "subject":
        vllm_probe({function!r})
    assert vllm_probe("fine") == 8
"""
PREFIX = """
import pytest

def test_another_test_of_the_same_process(vllm_probe):
    vllm_probe("says", words="INFO engine: enable_prefix_caching=True")

@pytest.mark.vllm_case("demo-1")
def test_demo(vllm_probe, vllm_leg):
    vllm_probe("says", words="INFO engine: enable_prefix_caching=True")
    if vllm_leg == "subject":
        vllm_probe("refuses")
"""
PROBE = """
import sys
from vllm_regress_target import Unsupported
from vllm_regress_target.dialect.known import missing_argument

def fine(): return 8
def says(words): print(words, flush=True)
def refuses(): raise ValueError("max_tokens must be at least 1, got -5")
def typing_error(): raise missing_argument("enable_prefix_cachin", "0.8.4")
def too_new(): raise missing_argument("attention_config", "0.8.4")
def gap():
    from vllm_regress_target.dialect.signatures import SimulationGap
    raise SimulationGap("a profile of the device was asked for")
"""
CHANGED = """
import pytest

@pytest.mark.vllm_case("demo-1")
def test_demo(vllm_probe):
    assert vllm_probe("gives", value=1) == 8, "the documented words"
"""


@pytest.mark.parametrize(
    "where", ["", 'where = "log"', 'where = ["exception", "log", "traceback"]']
)
def test_text_logged_before_the_test_proves_nothing(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path, where: str
) -> None:
    demo(test=SAYS, symptom=where)
    _, result = run(pytester, affected_target)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "'the documented words' does not match in" in result.reason
    assert result.observation is not None
    assert "KeyError" in result.observation.parts[Part.EXCEPTION]
    assert "the documented words" not in result.observation.parts.get(Part.LOG, "")


@pytest.mark.parametrize("where", ["", 'where = "log"', 'where = ["exception", "log"]'])
def test_a_line_of_the_start_or_of_another_test_is_not_a_symptom(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path, where: str
) -> None:
    demo(test=PREFIX, pattern="prefix", symptom=where)
    pytester.makepyfile(probe=PROBE)
    pytester.runpytest_inprocess(f"--vllm-env={affected_target}", "--vllm-report=out.json")
    (result,) = read_results(pytester.path / "out.json").results
    assert result.verdict is Verdict.INCONCLUSIVE
    assert (
        "'prefix' does not match" in result.reason
        and "max_tokens must be at least 1" in result.reason
    )
    assert any(
        "matches the log of a normal run" in line for line in lint.lint_case(in_log(pytester), ())
    )


def in_log(pytester: pytest.Pytester) -> Case:
    """The demo case, whose pattern is searched in the log."""
    case = load_case(pytester.path / "case.toml")
    return dataclasses.replace(case, symptom=dataclasses.replace(case.symptom, where=(Part.LOG,)))


@pytest.mark.parametrize(
    ("function", "verdict", "words"),
    [
        ("typing_error", Verdict.INCONCLUSIVE, "close to it: enable_prefix_caching"),
        ("too_new", Verdict.NOT_APPLICABLE, "attention_config"),
        ("gap", Verdict.NOT_APPLICABLE, "a profile of the device was asked for"),
    ],
)
def test_an_unknown_feature_is_an_error_and_a_missing_one_a_claim(
    demo: Demo,
    pytester: pytest.Pytester,
    affected_target: Path,
    function: str,
    verdict: Verdict,
    words: str,
) -> None:
    demo(function, test=RAISES)
    pytester.makepyfile(probe=PROBE)
    _, result = run(pytester, affected_target)
    assert (result.verdict, result.expected) == (verdict, verdict is Verdict.NOT_APPLICABLE)
    assert words in result.reason
    assert result.observation is not None
    assert bool(result.observation.claim) == (verdict is Verdict.NOT_APPLICABLE)


def test_a_control_that_was_not_run_is_not_a_proof(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path
) -> None:
    demo("raises")
    _, result = run(pytester, affected_target)
    assert (result.verdict, result.control) == (Verdict.REPRODUCED, "passed")
    assert result.observation is not None
    case = load_case(pytester.path / "case.toml")
    alone = judge_observation(case, None, result.versions, result.observation)
    assert alone.verdict is Verdict.INCONCLUSIVE
    assert "the control leg (without the trigger) was not run, so nothing is proven" in alone.reason


@pytest.mark.parametrize(("function", "kind"), [("raises", "exception"), ("one", "wrong-result")])
def test_a_control_that_fails_counts_for_every_kind(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path, function: str, kind: str
) -> None:
    demo(function, kind=kind, control_function=function)
    _, result = run(pytester, affected_target)
    assert (result.verdict, result.control) == (Verdict.INCONCLUSIVE, "failed")
    assert "the control leg failed too" in result.reason


def test_a_control_may_change_the_arguments_of_the_probe(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path
) -> None:
    demo(test=CHANGED, kind="wrong-result", control="probe = { value = 8 }")
    _, result = run(pytester, affected_target)
    assert (result.verdict, result.control) == (Verdict.REPRODUCED, "passed")
    assert result.match is not None and result.match.part is Part.ASSERTION


@pytest.mark.parametrize("asserted", [8, 1], ids=["fails", "passes"])
def test_without_its_mechanism_a_case_is_inconclusive(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path, asserted: int
) -> None:
    demo(
        test=AT_WORK.replace("{wanted}", "9").replace("{asserted}", str(asserted)),
        kind="wrong-result",
    )
    _, result = run(pytester, affected_target)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "not at work: eight came" in result.reason


def test_what_the_probe_logged_shows_why_a_mechanism_was_absent(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path
) -> None:
    demo(test=ABSENT)
    pytester.makepyfile(probe=PROBE)
    _, result = run(pytester, affected_target)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.observation is not None
    assert "no backend was found" in result.observation.parts[Part.LOG]


def test_with_its_mechanism_it_is_proven_and_without_a_word_about_it_not(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path
) -> None:
    demo(test=AT_WORK.replace("{wanted}", "8").replace("{asserted}", "8"), kind="wrong-result")
    _, result = run(pytester, affected_target)
    assert result.verdict is Verdict.REPRODUCED
    case = load_case(pytester.path / "case.toml")
    assert proof.tests_without_mechanism(case, [result]) == []
    demo("one", kind="wrong-result")
    _, result = run(pytester, affected_target)
    (line,) = proof.tests_without_mechanism(case, [result])
    assert "nothing shows that its mechanism was at work" in line


def test_a_skip_without_a_claim_is_not_a_verdict(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path
) -> None:
    demo("cannot_say")
    _, result = run(pytester, affected_target)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "skipped without naming the versions or devices" in result.reason
    assert result.observation is not None and result.observation.kind is Kind.NOT_APPLICABLE
