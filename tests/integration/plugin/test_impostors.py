"""Impostors between a test and its target: a precise case rejects them, a vague one is detected."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.cases.proofs.impostors import (
    MIN_REJECTED,
    Impostor,
    ImpostorRun,
    read_impostor_runs,
)
from pytest_vllm_regress.cases.verdict import Verdict
from tests.integration.plugin.conftest import Demo

pytestmark = pytest.mark.slow

WEAK = """
import pytest

@pytest.mark.vllm_case("demo-1"{arguments})
def test_demo(vllm_probe):
    vllm_probe({function!r}, timeout=5)
"""


def met(
    pytester: pytest.Pytester, target: Path
) -> tuple[pytest.RunResult, dict[Impostor, ImpostorRun]]:
    """pytest's result, and the trials of the run by impostor."""
    done = pytester.runpytest_inprocess(f"--vllm-env={target}", "--vllm-impostors=met")
    return done, {
        trial.impostor: trial
        for file in (pytester.path / "met").glob("*")
        for trial in read_impostor_runs(file)
    }


NARROW = {
    "exception": ("raises", "^ValueError: the documented words"),
    "wrong-result": ("one", r"the documented words: \d"),
    "hang": ("hangs", "waiting for the documented words"),
    "crash": ("crashes", "exit status 7"),
}


@pytest.mark.parametrize("kind", NARROW)
def test_a_narrow_case_rejects_every_impostor(
    pytester: pytest.Pytester, demo: Demo, affected_target: Path, kind: str
) -> None:
    function, pattern = NARROW[kind]
    demo(function, kind=kind, pattern=pattern)
    done, trials = met(pytester, affected_target)
    done.assert_outcomes(passed=1)
    assert set(trials) == set(Impostor) - {Impostor.ERROR_STATUS}
    assert len(trials) == MIN_REJECTED
    assert {trial.verdict for trial in trials.values()} == {Verdict.INCONCLUSIVE}


FOUND_OUT = [
    (
        "exception",
        ".",
        {Impostor.UNRELATED_EXCEPTION, Impostor.WRONG_ARGUMENT, Impostor.FLOODED_LOG},
    ),
    ("wrong-result", "the documented words", {Impostor.EMPTY_ANSWER, Impostor.FLOODED_LOG}),
    ("hang", ".", {Impostor.ENGINE_STOPPED, Impostor.FLOODED_LOG}),
    ("crash", ".", {Impostor.ENGINE_KILLED, Impostor.FLOODED_LOG}),
]


@pytest.mark.parametrize(("kind", "pattern", "fooled"), FOUND_OUT)
def test_a_wide_case_is_reported(
    pytester: pytest.Pytester,
    demo: Demo,
    affected_target: Path,
    kind: str,
    pattern: str,
    fooled: set[Impostor],
) -> None:
    demo(NARROW[kind][0], kind=kind, pattern=pattern)
    done, trials = met(pytester, affected_target)
    done.assert_outcomes(failed=1)
    assert {name for name, trial in trials.items() if trial.flaw} == fooled
    done.stdout.fnmatch_lines(["*an impostor (*) in place of the answer to * produced REPRODUCED*"])


def test_on_the_fixed_side_too(pytester: pytest.Pytester, demo: Demo, fixed_target: Path) -> None:
    demo("fine", kind="exception", pattern=".")
    done, trials = met(pytester, fixed_target)
    done.stdout.fnmatch_lines(
        ["*an impostor (unrelated exception) in place of the answer to * produced REGRESSED*"]
    )
    assert trials[Impostor.UNRELATED_EXCEPTION].verdict is Verdict.REGRESSED


def test_a_test_that_asserts_nothing_is_reported(
    pytester: pytest.Pytester, demo: Demo, affected_target: Path
) -> None:
    demo("raises", kind="exception", pattern="^ValueError: the documented words", test=WEAK)
    done, trials = met(pytester, affected_target)
    done.stdout.fnmatch_lines(["*passes with empty answers: it asserts too little*"])
    assert [name for name, trial in trials.items() if trial.flaw] == [Impostor.EMPTY_ANSWER]


def test_a_variant_is_tried_where_there_is_no_other_test(
    pytester: pytest.Pytester, demo: Demo, affected_target: Path
) -> None:
    demo("raises", arguments=', variant="other"')
    done, trials = met(pytester, affected_target)
    done.assert_outcomes(passed=1)
    assert len(trials) >= 6
