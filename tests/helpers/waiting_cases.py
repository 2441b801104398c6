"""Cases without vLLM: their probe inspects a fake interpreter, and some wait until a file is
removed."""

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


def version_case(
    cases: Path, name: str, *, flag: Path | None = None, note: Path | None = None
) -> Case:
    """Create a case that is REPRODUCED on "vllm" below 0.8.5 and FIXED on others. It ends when
    ``flag`` is removed.

    Each run appends a line to ``note``.
    """
    given = f"flag={str(flag or '')!r}, note={str(note or '')!r}"
    test = f"""
import pytest


@pytest.mark.vllm_case({name!r})
def test_version(vllm_probe, vllm_at_work):
    version = vllm_probe("version", {given})
    vllm_at_work("the probe returned a version", bool(version))
    assert version != "0.8.4", "expected another version than 0.8.4"
"""
    files = {"probe.py": PROBE, f"test_{name.replace('-', '_')}.py": test}
    return CaseFile(
        name, pattern="expected another version", old=["vllm-0.8.4"], new=["vllm-0.8.5"]
    ).write(cases, files)


def variables_case(cases: Path, name: str, folder: Path) -> Case:
    """Create a case that is always FIXED; each run writes the variables and the niceness of its
    target to a file in ``folder``."""
    test = f"""
import pytest


@pytest.mark.vllm_case({name!r})
def test_variables(vllm_probe, vllm_at_work):
    vllm_at_work("the probe wrote variables", vllm_probe("variables", folder={str(folder)!r}) > 0)
"""
    files = {"probe.py": PROBE, f"test_{name.replace('-', '_')}.py": test}
    return CaseFile(name, old=["vllm-0.8.4"], new=["vllm-0.8.5"]).write(cases, files)
