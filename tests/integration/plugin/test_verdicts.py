"""Each verdict, on real children."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.cases import results
from pytest_vllm_regress.cases.verdict import Verdict
from tests.helpers.cases import CaseFile
from tests.integration.plugin.conftest import TEST, Demo


def run(
    pytester: pytest.Pytester, target: Path, *options: str
) -> tuple[pytest.RunResult, results.TestResult]:
    done = pytester.runpytest_inprocess(
        f"--vllm-env={target}", "--vllm-report=out.json", "-rA", *options
    )
    return done, results.read_results(pytester.path / "out.json").results[0]


@pytest.mark.parametrize(
    ("function", "kind"),
    [("raises", "exception"), ("hangs", "hang"), ("crashes", "crash"), ("one", "wrong-result")],
)
def test_reproduced_is_xfailed_and_names_upstream_and_the_fix(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path, function: str, kind: str
) -> None:
    demo(function, kind=kind)
    done, result = run(pytester, affected_target)
    done.assert_outcomes(xfailed=1)
    assert result.match is not None and "documented words" in result.match.line
    assert (result.verdict, result.device, result.versions["vllm"]) == (
        Verdict.REPRODUCED,
        "sim",
        "0.8.4",
    )
    done.stdout.fnmatch_lines(
        ["*REPRODUCED*the documented words*https://example.org/1*vllm 0.8.5*"]
    )
    done.stdout.fnmatch_lines(["REPRODUCED*demo-1 on *device sim (simulated device)*"])


def test_known_failures_fail_on_request(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path
) -> None:
    demo("raises")
    done, result = run(pytester, affected_target, "--vllm-fail-on-known")
    done.assert_outcomes(failed=1)
    assert result.verdict is Verdict.REPRODUCED


def test_fixed_passes(demo: Demo, pytester: pytest.Pytester, fixed_target: Path) -> None:
    demo("fine")
    done, result = run(pytester, fixed_target)
    done.assert_outcomes(passed=1)
    assert result.verdict is Verdict.FIXED


def test_regressed_fails(demo: Demo, pytester: pytest.Pytester, fixed_target: Path) -> None:
    demo("raises")
    done, result = run(pytester, fixed_target)
    done.assert_outcomes(failed=1)
    assert result.verdict is Verdict.REGRESSED


def test_unexpectedly_fixed_fails(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path
) -> None:
    demo("fine")
    done, result = run(pytester, affected_target)
    done.assert_outcomes(failed=1)
    assert result.verdict is Verdict.UNEXPECTEDLY_FIXED


@pytest.mark.parametrize(
    ("function", "affected", "verdict"),
    [("fine", "<0.8.6", Verdict.UNEXPECTEDLY_FIXED), ("raises", "<0.8.4", Verdict.REGRESSED)],
)
def test_a_changed_range_turns_a_green_run_red(
    demo: Demo,
    pytester: pytest.Pytester,
    fixed_target: Path,
    function: str,
    affected: str,
    verdict: Verdict,
) -> None:
    demo(function, affected=affected)
    done, result = run(pytester, fixed_target)
    assert (done.ret, result.verdict) == (1, verdict)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        ("raises_other", {}),
        ("raises", {"pattern": "words that nobody says"}),
        ("raises", {"kind": "crash"}),
        ("hangs", {"kind": "hang", "control_function": "hangs"}),
        ("crashes", {"kind": "crash", "control_function": "raises_other"}),
    ],
)
def test_another_failure_or_a_failing_control_leg_is_inconclusive(
    demo: Demo,
    pytester: pytest.Pytester,
    affected_target: Path,
    function: str,
    options: dict[str, str],
) -> None:
    demo(function, **options)
    done, result = run(pytester, affected_target)
    assert done.ret == 1
    assert result.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(("affected", "named"), [("<0.8.5", True), ("<0.8", False)])
def test_a_failure_that_another_case_documents_names_it(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path, affected: str, named: bool
) -> None:
    demo("raises_other")
    CaseFile("demo-2", affected=affected, kind="exception", pattern="something else").write(
        pytester.path / "cases"
    )
    _, result = run(pytester, affected_target)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.reason.endswith("; this looks like demo-2") is named


def test_pass_without_a_reply_is_inconclusive(
    demo: Demo, pytester: pytest.Pytester, fixed_target: Path
) -> None:
    demo(
        test='import pytest\n@pytest.mark.vllm_case("demo-1")\ndef test_demo(vllm_probe):\n    pass\n'
    )
    done, result = run(pytester, fixed_target)
    done.assert_outcomes(failed=1)
    assert "without one reply" in result.reason


def test_control_leg_that_changes_nothing_is_inconclusive(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path
) -> None:
    demo(
        kind="hang",
        test='import pytest\n@pytest.mark.vllm_case("demo-1")\ndef test_demo(vllm_probe):\n    vllm_probe("hangs", timeout=1)\n',
    )
    assert "the same as the subject" in run(pytester, affected_target)[1].reason


@pytest.mark.parametrize(
    "options", [{"function": "cannot"}, {"function": "raises", "devices": ("gpu",)}]
)
def test_not_applicable_is_skipped(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path, options: dict[str, str]
) -> None:
    demo(**options)
    done, result = run(pytester, affected_target)
    done.assert_outcomes(skipped=1)
    assert result.verdict is Verdict.NOT_APPLICABLE


def test_variant_that_is_never_affected(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path
) -> None:
    demo("fine", arguments=', variant="other"')
    assert run(pytester, affected_target)[1].verdict is Verdict.FIXED


def test_hang_ends_before_the_outer_timeout(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path
) -> None:
    demo("hangs", kind="hang", test=TEST.replace(', timeout=1 if function == "hangs" else 60', ""))
    done, result = run(pytester, affected_target, "--timeout=16")
    done.assert_outcomes(xfailed=1)
    assert result.verdict is Verdict.REPRODUCED


@pytest.mark.parametrize("related", [False, True])
def test_the_failure_of_an_unrelated_case_is_named_before_anything_else(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path, related: bool
) -> None:
    demo("raises")
    keys = 'related = ["demo-1"]' if related else ""
    other = CaseFile(
        "demo-2",
        upstream=["https://example.org/2"],
        kind="exception",
        pattern="documented words",
        keys=keys,
    ).write(pytester.path / "cases")
    (other.directory / "evidence.json").touch()
    _, result = run(pytester, affected_target)
    assert result.verdict is Verdict.REPRODUCED
    assert result.same_as == (() if related else ("demo-2",))
    assert result.reason.startswith("same traceback or text as demo-2: ") is not related
