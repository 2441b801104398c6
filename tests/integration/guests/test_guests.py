"""Other plugins work on our tests, too: with the built wheel, on the oldest and the newest
supported pytest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_vllm_regress.cases.results import read_results
from pytest_vllm_regress.environments import uv
from tests.helpers import ROOT
from tests.integration.plugin.conftest import DEMO, PROBE

pytestmark = pytest.mark.slow

PLUGINS = ("rerunfailures", "asyncio", "cov", "randomly", "html", "subtests", "benchmark")
TESTS = """
import asyncio
from pathlib import Path
import pytest

def test_flaky(vllm_probe):
    tried = Path(__file__).with_name("tried")
    first = not tried.exists()
    tried.touch()
    assert vllm_probe("one" if first else "fine") == 8

@pytest.mark.asyncio
async def test_asynchronous(vllm_probe):
    await asyncio.sleep(0)
    assert vllm_probe("fine") == 8

def test_subtests(vllm_probe, subtests):
    for _ in range(2):
        with subtests.test():
            assert vllm_probe("fine") == 8

def test_measured(vllm_probe, benchmark):
    assert benchmark.pedantic(vllm_probe, ("fine",), rounds=3) == 8

def test_of_another_plugin():
    tried = Path(__file__).with_name("others")
    first = not tried.exists()
    tried.touch()
    assert not first
"""
CASE_TEST = """
import pytest

pytestmark = pytest.mark.vllm_case("demo-1")

def test_known(vllm_probe, vllm_leg):
    assert vllm_probe("raises" if vllm_leg == "subject" else "fine") == 8

def test_other_failure(vllm_probe, vllm_leg):
    assert vllm_probe("raises_other" if vllm_leg == "subject" else "fine") == 8
"""


@pytest.fixture(scope="module", params=["pytest==8.2.0", "pytest"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel, the given pytest and the other plugins."""
    root = tmp_path_factory.mktemp("guests")
    uv.run(["build", "--wheel", "--quiet", "--out-dir", root, ROOT], doing="building the wheel")
    (wheel,) = root.glob("*.whl")
    python = root / "venv" / "bin" / "python"
    uv.run(
        ["venv", "--quiet", "--python", sys.executable, root / "venv"],
        doing="making an environment",
    )
    packages = [wheel, request.param, *(f"pytest-{name}" for name in PLUGINS)]
    uv.run(
        ["pip", "install", "--quiet", "--python", python, *packages], doing="installing the plugins"
    )
    return python


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_other_plugins_work_on_our_tests(
    installed: Path, tmp_path: Path, affected_target: Path, workers: tuple[str, ...]
) -> None:
    """A test that uses our fixtures is rerun, awaited, split, measured and reported like any other.

    A case keeps its verdict even if it is rerun.
    """
    project = tmp_path / "project"
    project.mkdir()
    (project / "case.toml").write_text(DEMO.text())
    (project / "probe.py").write_text(PROBE)
    (project / "test_plain.py").write_text(TESTS)
    (project / "test_case.py").write_text(CASE_TEST)
    command = [
        installed,
        "-m",
        "pytest",
        "-v",
        "-p",
        "no:cacheprovider",
        f"--vllm-env={affected_target}",
        *workers,
    ]
    command += [
        "--vllm-report=out.json",
        "--reruns=1",
        "--html=page.html",
        "--cov=.",
        "--cov-report=term",
        "-p",
        "randomly",
    ]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    done = subprocess.run(
        [str(argument) for argument in command],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 1, output
    last = {
        word: int(number)
        for number, word in re.findall(r"(\d+) (\w+)", done.stdout.splitlines()[-1])
    }
    assert (last.get("failed"), last.get("xfailed"), last.get("rerun")) == (1, 1, 2), output
    assert "test_plain.py" in output[output.index("coverage:") :]
    assert "test_flaky" in (project / "page.html").read_text()
    assert "test_measured" in output
    verdicts = {
        result.test.rpartition("::")[2]: result.verdict.value
        for result in read_results(project / "out.json").results
    }
    assert verdicts == {"test_known": "REPRODUCED", "test_other_failure": "INCONCLUSIVE"}
