"""The agents of pytest-xdist's workers are forked from one import of vLLM, here of a stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import MakeTarget
from tests.helpers import fake_vllm

PROBE = "def answer():\n    return 42\n"
TESTS = """
def test_answer(vllm_probe):
    assert vllm_probe("answer") == 42
"""


def test_workers_share_the_import(
    pytester: pytest.Pytester, make_target: MakeTarget, tmp_path: Path
) -> None:
    python, count = make_target(vllm="0.8.5"), tmp_path / "imports"
    fake_vllm.install(python)
    fake_vllm.at_import(python, f"open({str(count)!r}, 'a').write('imported\\n')")
    pytester.makepyfile(TESTS, probe=PROBE)
    options = [f"--vllm-env={python}", "--vllm-device=sim", "-n3", "--dist=each"]
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=3)
    assert count.read_text().count("imported") == 1
