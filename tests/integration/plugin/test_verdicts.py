"""Each verdict, on real children."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.cases import results
from pytest_vllm_regress.cases.verdict import Verdict
from tests.helpers.cases import CaseFile
from tests.integration.plugin.conftest import DEMO, PROBE, TEST, Demo


def run(
    pytester: pytest.Pytester, target: Path, *options: str
) -> tuple[pytest.RunResult, results.TestResult]:
    done = pytester.runpytest_inprocess(
        f"--vllm-env={target}", "--vllm-report=out.json", "-rA", *options
    )
    return done, results.read_results(pytester.path / "out.json").results[0]


ROWS: dict[str, tuple[str, dict[str, Any], Verdict, str]] = {
    "exception": ("raises", {}, Verdict.REPRODUCED, "xfailed"),
    "hang": ("hangs", {"kind": "hang"}, Verdict.REPRODUCED, "xfailed"),
    "crash": ("crashes", {"kind": "crash"}, Verdict.REPRODUCED, "xfailed"),
    "wrong-result": ("one", {"kind": "wrong-result"}, Verdict.REPRODUCED, "xfailed"),
    "passes": ("fine", {}, Verdict.UNEXPECTEDLY_FIXED, "failed"),
    "passes-outside": ("fine", {"affected": "<0.8.4"}, Verdict.FIXED, "passed"),
    "fails-outside": ("raises", {"affected": "<0.8.4"}, Verdict.REGRESSED, "failed"),
    "variant": ("fine", {"arguments": ', variant="other"'}, Verdict.FIXED, "passed"),
    "cannot": ("cannot", {}, Verdict.NOT_APPLICABLE, "skipped"),
    "device": ("raises", {"devices": ("gpu",)}, Verdict.NOT_APPLICABLE, "skipped"),
    "other-failure": ("raises_other", {}, Verdict.INCONCLUSIVE, "failed"),
    "other-words": ("raises", {"pattern": "words of nobody"}, Verdict.INCONCLUSIVE, "failed"),
    "other-kind": ("raises", {"kind": "crash"}, Verdict.INCONCLUSIVE, "failed"),
    "control-hangs": (
        "hangs",
        {"kind": "hang", "control": "hangs"},
        Verdict.INCONCLUSIVE,
        "failed",
    ),
    "control-fails": (
        "crashes",
        {"kind": "crash", "control": "raises_other"},
        Verdict.INCONCLUSIVE,
        "failed",
    ),
    "control-is-the-same": (
        "hangs",
        {"kind": "hang", "test": 'vllm_probe("hangs", timeout=1)'},
        Verdict.INCONCLUSIVE,
        "failed",
    ),
    "no-reply": ("fine", {"test": "pass"}, Verdict.INCONCLUSIVE, "failed"),
}
"""Cases: what the probe does, fields of the case and parts of its test, the verdict on 0.8.4, and
the outcome for pytest."""
OWN_TEST = """
import pytest

@pytest.mark.vllm_case("demo-1")
def test_demo(vllm_probe):
    {}
"""


def write_row(folder: Path, number: int, function: str, fields: dict[str, Any]) -> None:
    """Write a case whose id ends with the number."""
    changed = {key: fields[key] for key in fields if key not in ("arguments", "control", "test")}
    test = TEST.format(
        function=function,
        control=fields.get("control", "fine"),
        arguments=fields.get("arguments", ""),
    )
    if "test" in fields:
        test = OWN_TEST.format(fields["test"])
    case_id = f"demo-{number}"
    files = {"probe.py": PROBE, f"test_demo_{number}.py": test.replace("demo-1", case_id)}
    dataclasses.replace(DEMO, id=case_id, **changed).write(folder, files)


def test_verdicts_and_outcomes(pytester: pytest.Pytester, affected_target: Path) -> None:
    """All cases are in one run: it is the processes that take time."""
    for number, (name, (function, fields, _, _)) in enumerate(ROWS.items()):
        write_row(pytester.path / name, number, function, fields)
    done = pytester.runpytest_inprocess(
        f"--vllm-env={affected_target}", "--vllm-report=out.json", "-rA"
    )
    found = {
        list(ROWS)[int(result.case_id.removeprefix("demo-"))]: result
        for result in results.read_results(pytester.path / "out.json").results
    }
    assert {name: result.verdict for name, result in found.items()} == {
        name: verdict for name, (_, _, verdict, _) in ROWS.items()
    }
    done.assert_outcomes(**Counter(outcome for *_, outcome in ROWS.values()))
    for number, (name, (_, _, verdict, _)) in enumerate(ROWS.items()):
        if verdict is Verdict.REPRODUCED:
            match = found[name].match
            assert match is not None and "documented words" in match.line
            done.stdout.fnmatch_lines_random(
                [
                    f"REPRODUCED {name}/*the documented words*https://example.org/1*vllm 0.8.5*",
                    f"REPRODUCED*demo-{number} on *device sim (simulated device)*",
                ]
            )
    assert {(result.device, result.versions["vllm"]) for result in found.values()} == {
        ("sim", "0.8.4")
    }
    assert "the same as the subject" in found["control-is-the-same"].reason
    assert "without one reply" in found["no-reply"].reason


def test_known_failures_fail_on_request(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path
) -> None:
    demo("raises")
    done, result = run(pytester, affected_target, "--vllm-fail-on-known")
    done.assert_outcomes(failed=1)
    assert result.verdict is Verdict.REPRODUCED


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
