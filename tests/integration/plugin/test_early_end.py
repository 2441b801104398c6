"""A documented hang ends early in the subject's leg, and only there; a proof waits for the full
deadline."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.cases.verdict import Verdict
from tests.integration.plugin.conftest import TEST, Demo
from tests.integration.plugin.test_verdicts import run

pytestmark = pytest.mark.slow

HANG = """
import threading

def fine(): return 8
def hangs(): print("waiting for the documented words", flush=True); threading.Event().wait()
"""
PATIENT_S = 40


def write(demo: Demo, seconds: float, **more: str) -> None:
    folder = demo(
        "hangs", kind="hang", test=TEST.replace("timeout=1", f"timeout={seconds:g}"), **more
    )
    (folder / "probe.py").write_text(HANG)


def test_a_documented_hang_is_reproduced_before_its_deadline(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path
) -> None:
    write(demo, PATIENT_S)
    done, result = run(pytester, affected_target)
    done.assert_outcomes(xfailed=1)
    assert result.verdict is Verdict.REPRODUCED and result.control == "passed"
    assert result.duration_s < PATIENT_S - 5
    assert (
        f"the wait ended before its deadline of {PATIENT_S} s" in result.dossier
        and "== dossier:" in result.dossier
    )


@pytest.mark.parametrize(
    ("options", "more"),
    [
        (["--vllm-full-deadlines"], {}),
        ([], {"pattern": "words that nobody says"}),
    ],
)
def test_otherwise_the_whole_deadline_passes(
    demo: Demo,
    pytester: pytest.Pytester,
    affected_target: Path,
    options: list[str],
    more: dict[str, str],
) -> None:
    write(demo, 14, **more)  # longer than the settling time
    _, result = run(pytester, affected_target, *options)
    assert "no answer within 14 s" in result.dossier
    assert result.verdict is (Verdict.INCONCLUSIVE if more else Verdict.REPRODUCED)


def test_a_control_leg_never_ends_early(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path
) -> None:
    write(demo, 14, control_function="hangs")
    _, result = run(pytester, affected_target)
    assert result.verdict is Verdict.INCONCLUSIVE and result.control == "failed"
    assert result.duration_s > 14
