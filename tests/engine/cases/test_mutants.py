"""Mutants of a case with a real vLLM:

`validate` does not prove them. tests/unit/cases/test_mutations.py covers all cases, without
engines.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from tests.helpers import ROOT
from tests.helpers.environments import require_environment

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("user_caches")]
CASE = "vllm-57550"  # a probe: no engine has to start, and 0.33.0 is its only environment

MUTANTS = {
    "as it is": ("case.toml", r"$^", "", "PROVEN"),
    "pattern": ("case.toml", r"(?m)^pattern = .*$", 'pattern = ".*"', "which is not this failure"),
    "control": (
        "test_vllm_57550.py",
        r"vllm_at_work\(.*distinguishes\)",
        "pass",
        "nothing shows that its mechanism",
    ),
    "range": ("case.toml", r">=0\.29", "<0.29", "was REGRESSED, not REPRODUCED"),
    "assertion": (
        "test_vllm_57550.py",
        r"assert (vllm_probe\(.*?\))",
        r"assert \1 or True",
        "was UNEXPECTEDLY_FIXED",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_only_the_case_itself_is_proven(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    require_environment("vllm-0.33.0")
    file, pattern, replacement, words = MUTANTS[name]
    shutil.copytree(ROOT / "cases" / CASE, tmp_path / CASE)
    path = tmp_path / CASE / file
    text = path.read_text()
    path.write_text(re.sub(pattern, replacement, text))
    assert (path.read_text() == text) == (name == "as it is")
    code = cli.main(["--cases", str(tmp_path), "validate", CASE])
    output = capsys.readouterr().out
    assert words in output, output
    assert code == (0 if name == "as it is" else 1)
