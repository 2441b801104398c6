"""The example suite of eleven clients, in an installation of its own, on real releases."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pytest_vllm_regress.environments import uv
from pytest_vllm_regress.errors import BuildError, BuildFailure
from tests.helpers import ROOT
from tests.helpers.environments import require_environment

EXAMPLE = ROOT / "examples" / "clients"
CLIENTS = 11
TESTS = 45
MAX_LINES = 260
"""Of code in the whole suite, without imports and comments."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pytest in an environment with this project and the newest clients."""
    folder = tmp_path_factory.mktemp("clients") / "venv"
    python = folder / "bin" / "python"
    listed = (EXAMPLE / "requirements.txt").read_text().split()
    packages = [word for word in listed if word != "pytest-vllm-regress"]
    assert len(packages) == CLIENTS
    try:
        uv.run(["venv", "--quiet", folder], doing="making an environment")
        uv.run(
            ["pip", "install", "--quiet", "--python", python, "--editable", ROOT, *packages],
            doing="installing the clients",
        )
    except BuildError as error:
        if error.failure is BuildFailure.INDEX_UNREACHABLE:
            pytest.skip("the clients cannot be installed: no package index can be reached")
        raise
    return python.with_name("pytest")


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.usefixtures("user_caches")
@pytest.mark.parametrize(
    ("release", "skipped"),
    [("vllm-0.33.0", 0), ("vllm-0.20.2", 0), ("vllm-0.11.2", 4), ("vllm-0.8.5", 7)],
)
def test_every_client_works(program: Path, tmp_path: Path, release: str, skipped: int) -> None:
    require_environment(release)
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project)
    done = subprocess.run(
        [program, f"--vllm-env={release}", "-p", "no:cacheprovider", "-rs"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=600,
    )
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (\w+)", done.stdout.splitlines()[-1])}
    assert done.returncode == 0, done.stdout + done.stderr
    assert (counts["passed"], counts.get("skipped", 0)) == (TESTS - skipped, skipped)


def test_the_suite_is_short() -> None:
    lines = [line for path in EXAMPLE.glob("*.py") for line in path.read_text().splitlines()]
    code = [line for line in lines if line and not line.startswith(("import ", "from ", "#", '"'))]
    assert len(code) <= MAX_LINES
