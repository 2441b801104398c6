"""Cases that need no vLLM: what their probe finds in a stand-in interpreter decides, and some wait until a file is gone."""

from __future__ import annotations

from pathlib import Path

from pytest_vllm_regress.cases.model import Case
from tests.helpers.cases import CaseFile

PROBE = """
import os
import time


def version(flag, note):
    import vllm
    if note:
        open(note, "a").write("%d\\n" % os.getpid())
    while flag and os.path.exists(flag):
        time.sleep(0.05)
    return vllm.__version__


def variables(folder):
    import json
    seen = {"variables": dict(os.environ), "nice": os.nice(0)}
    with open(os.path.join(folder, "%d.json" % os.getpid()), "w") as file:
        json.dump(seen, file)
    return len(os.environ)
"""


def version_case(cases: Path, name: str, *, flag: Path | None = None, note: Path | None = None) -> Case:
    """REPRODUCED on "vllm" below 0.8.5, FIXED on others. It ends when ``flag`` is gone; each of its runs leaves a line in ``note``."""
    given = f"flag={str(flag or '')!r}, note={str(note or '')!r}"
    test = f"""
import pytest


@pytest.mark.vllm_case({name!r})
def test_version(vllm_probe, vllm_at_work):
    found = vllm_probe("version", {given})
    vllm_at_work("a version was told", bool(found))
    assert found != "0.8.4", "expected another version than 0.8.4"
"""
    files = {"probe.py": PROBE, f"test_{name.replace('-', '_')}.py": test}
    return CaseFile(name, pattern="expected another version", old=["vllm-0.8.4"], new=["vllm-0.8.5"]).write(
        cases, files
    )


def variables_case(cases: Path, name: str, folder: Path) -> Case:
    """FIXED, wherever it runs; each run writes the variables and the niceness that a target has into a file in ``folder``."""
    test = f"""
import pytest


@pytest.mark.vllm_case({name!r})
def test_variables(vllm_probe, vllm_at_work):
    vllm_at_work("variables were told", vllm_probe("variables", folder={str(folder)!r}) > 0)
"""
    files = {"probe.py": PROBE, f"test_{name.replace('-', '_')}.py": test}
    return CaseFile(name, old=["vllm-0.8.4"], new=["vllm-0.8.5"]).write(cases, files)
