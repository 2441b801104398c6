"""`vllm-regress export`: the script that it writes shows the failure without this project."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.observation import Observation
from pytest_vllm_regress.cases.rejudge import save_observations
from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.errors import Kind, Part
from pytest_vllm_regress.util.masking import mask
from tests.helpers import ROOT
from tests.helpers.cases import CaseFile

PROBE = '''"""Count."""
import os


def count(wanted):
    return wanted if os.environ.get("REPAIRED") else 1
'''
TEST = '''"""Count."""
import pytest

from pytest_vllm_regress import AtWork, Probe

pytestmark = pytest.mark.vllm_case("demo")


@pytest.mark.parametrize("wanted", [8])
def test_count(vllm_probe: Probe, vllm_at_work: AtWork, wanted: int) -> None:
    vllm_at_work("one is counted", vllm_probe("count", wanted=1) == 1)
    counted = vllm_probe("count", wanted=wanted)
    assert counted == wanted, f"expected {wanted}, got {counted}"
'''


def observed(case: Case, test: str) -> Case:
    seen = Observation(Kind.WRONG_RESULT, "probe", "expected 8, got 1", {Part.ASSERTION: mask("expected 8, got 1")})
    result = TestResult(
        case.id, test, Verdict.REPRODUCED, "", "sim", "old", {"vllm": "0.8.4"}, observation=seen, code="0" * 16
    )
    save_observations(case, [RunResult((result,))])
    return case


@pytest.fixture
def case(tmp_path: Path) -> Case:
    files = {"probe.py": PROBE, "test_demo.py": TEST}
    return observed(CaseFile().write(tmp_path / "cases", files), "demo/test_demo.py::test_count[8]")


def export(case: Case, *arguments: str) -> int:
    return cli.main(["--cases", str(case.directory.parent), "export", *arguments])


@pytest.mark.parametrize(("repaired", "status"), [("", 1), ("1", 0)])
def test_the_script_shows_the_failure_and_its_absence(case: Case, tmp_path: Path, repaired: str, status: int) -> None:
    script = tmp_path / "script.py"
    assert export(case, case.id, "-o", str(script)) == 0
    assert '#     "vllm==0.8.4",' in script.read_text()
    assert "pytest" not in script.read_text()
    run = subprocess.run(
        [sys.executable, "-I", str(script)], env={"REPAIRED": repaired}, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == status, run.stdout + run.stderr


def test_a_report_has_the_sections_of_the_form(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(case, case.id, "--issue") == 0
    text = capsys.readouterr().out
    assert "### Your current environment" in text and "vLLM Version: 0.8.4" in text
    assert "expected 8, got 1" in text and "# /// script" in text


def test_a_test_that_needs_the_harness_is_refused_with_the_reason(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    test = case.directory / "test_demo.py"
    test.write_text(test.read_text().replace("wanted: int", "wanted: int, vllm_sidecar"))
    assert export(case, case.id) == 2
    assert "test_count uses vllm_sidecar" in capsys.readouterr().err


def test_a_hang_is_refused(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    path = case.directory / "case.toml"
    hang = dataclasses.replace(CaseFile(), kind="hang", omits="the trigger", control="changes = { seed = 1 }")
    path.write_text(hang.text().replace("changes = { seed = 1 }", "seed = 1"))
    assert export(case, case.id) == 2
    assert "cannot show a hang" in capsys.readouterr().err


@pytest.mark.parametrize("case_id", ["vllm-17173", "lmfe-124", "vllm-18108", "xgrammar-286"])
def test_scripts_of_built_in_cases_import_nothing_of_ours(case_id: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    assert cli.main(["--cases", str(ROOT / "cases"), "export", case_id, "-o", str(script)]) == 0
    text = script.read_text()
    compile(text, str(script), "exec")
    assert "import pytest_vllm_regress" not in text and "from pytest_vllm_regress" not in text
