"""Cases made to be wrong: each is refused, or judged right."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.cases import proof
from pytest_vllm_regress.cases.model import load_case
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.errors import Kind, Part
from tests.integration.plugin.conftest import Demo
from tests.integration.plugin.test_verdicts import run

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
CHANGED = """
import pytest

@pytest.mark.vllm_case("demo-1")
def test_demo(vllm_probe):
    assert vllm_probe("gives", value=1) == 8, "the documented words"
"""


@pytest.mark.parametrize("where", ["", 'where = "log"', 'where = ["exception", "log", "traceback"]'])
def test_words_that_were_logged_before_prove_nothing(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path, where: str
) -> None:
    demo(test=SAYS, symptom=where)
    _, result = run(pytester, affected_target)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "'the documented words' does not match in" in result.reason
    assert result.observation is not None
    assert "KeyError" in result.observation.parts[Part.EXCEPTION]
    assert "the documented words" not in result.observation.parts.get(Part.LOG, "")


@pytest.mark.parametrize(("function", "kind"), [("raises", "exception"), ("one", "wrong-result")])
def test_a_control_that_fails_counts_for_every_kind(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path, function: str, kind: str
) -> None:
    demo(function, kind=kind, control_function=function)
    _, result = run(pytester, affected_target)
    assert (result.verdict, result.control) == (Verdict.INCONCLUSIVE, "failed")
    assert "the control leg did not pass either" in result.reason


def test_a_control_may_change_what_the_probe_is_asked(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path
) -> None:
    demo(test=CHANGED, kind="wrong-result", control="probe = { value = 8 }")
    _, result = run(pytester, affected_target)
    assert (result.verdict, result.control) == (Verdict.REPRODUCED, "passed")
    assert result.match is not None and result.match.part is Part.ASSERTION


@pytest.mark.parametrize("asserted", [8, 1], ids=["fails", "passes"])
def test_without_its_mechanism_a_case_says_nothing(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path, asserted: int
) -> None:
    demo(test=AT_WORK.replace("{wanted}", "9").replace("{asserted}", str(asserted)), kind="wrong-result")
    _, result = run(pytester, affected_target)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "not at work: eight came" in result.reason


def test_with_its_mechanism_it_is_proven_and_without_a_word_about_it_not(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path
) -> None:
    demo(test=AT_WORK.replace("{wanted}", "8").replace("{asserted}", "8"), kind="wrong-result")
    _, result = run(pytester, affected_target)
    assert result.verdict is Verdict.REPRODUCED
    case = load_case(pytester.path / "case.toml")
    assert proof.not_at_work(case, [result]) == []
    demo("one", kind="wrong-result")
    _, result = run(pytester, affected_target)
    (line,) = proof.not_at_work(case, [result])
    assert "nothing shows that its mechanism was at work" in line


def test_a_skip_without_a_claim_is_no_verdict(demo: Demo, pytester: pytest.Pytester, affected_target: Path) -> None:
    demo("cannot_say")
    _, result = run(pytester, affected_target)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "skipped without saying since, until or where" in result.reason
    assert result.observation is not None and result.observation.kind is Kind.NOT_APPLICABLE
