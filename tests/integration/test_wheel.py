"""The built wheel in an environment of its own, outside the checkout: what pytest itself does with the plugin installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_vllm_regress.environments import uv
from tests.helpers import ROOT

NO_TESTS = 5
OPTIONS = ("--help", "--version", "--fixtures", "--markers", "--collect-only", "--setup-plan")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder ``bin`` of a virtual environment that holds the wheel and what it depends on."""
    root = tmp_path_factory.mktemp("wheel")
    uv.run(["build", "--wheel", "--quiet", "--out-dir", root, ROOT], doing="building the wheel")
    uv.run(["venv", "--quiet", "--python", sys.executable, root / "venv"], doing="making an environment")
    (wheel,) = root.glob("*.whl")
    uv.run(
        ["pip", "install", "--quiet", "--python", root / "venv" / "bin" / "python", wheel], doing="installing the wheel"
    )
    return root / "venv" / "bin"


def test_pytest_in_an_empty_project(installed: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    said = {}
    for option in OPTIONS:
        done = subprocess.run(
            [installed / "pytest", option],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode in (0, NO_TESTS), f"{option}: {done.stdout}{done.stderr}"
        assert not done.stderr or option == "--version", f"{option}: {done.stderr}"
        said[option] = " ".join(done.stdout.split())
    assert "(default: 90 % of the machine's" in said["--help"]
    assert "vllm_engine" in said["--fixtures"]
    assert "vllm_case(id" in said["--markers"]
