"""Shell completion in bash: as ``--install-completion`` installs it, and what it completes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from tests.helpers import ROOT

COMPLETE = """
. ~/.bashrc
complete -p vllm-regress > /dev/null
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_vllm_regress_completion vllm-regress
printf '%s\n' "${COMPREPLY[@]}"
"""
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home directory with the installed completion."""
    home = tmp_path_factory.mktemp("home")
    variables = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest_vllm_regress", "--install-completion", "bash"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and "bash completion installed" in done.stdout, done.stderr
    return home


def completed(home: Path, *words: str) -> list[str]:
    """Return what bash offers for the last of ``words``."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE, "bash", "vllm-regress", *words],
        cwd=ROOT,
        env={**os.environ, "HOME": str(home), "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == "", done.stderr
    return done.stdout.split()


def test_commands_are_completed_in_their_order(home: Path) -> None:
    assert completed(home, "") == [*cli.COMMANDS]
    assert completed(home, "--cases", "x", "ex") == ["explain", "export"]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("env", "p"), ["prune", "path"]),
        (("bisect", "--f"), ["--find", "--fresh", "--format"]),
        (("audit", "--format", ""), ["text", "json", "sarif"]),
        (("show", "lmfe-12"), ["lmfe-124", "lmfe-124-pp"]),
        (("run", "--env", "vllm-0.10.1"), ["vllm-0.10.1.1"]),
        (("run", "--device", "s"), ["sim"]),
        (("--wheel",), ["--wheel-index"]),
    ],
)
def test_what_belongs_to_a_command_is_completed(
    home: Path, words: tuple[str, ...], offered: list[str]
) -> None:
    assert completed(home, *words) == offered


def test_lists_of_commands_import_no_command() -> None:
    code = (
        "import sys; from pytest_vllm_regress import cli; cli.main([]);"
        "names = {f'pytest_vllm_regress.cli.{cli.module_of(name)}' for name in cli.COMMANDS};"
        "print(*(names & set(sys.modules)), file=sys.stderr)"
    )
    variables = {"COMP_WORDS": "vllm-regress ", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables, "_VLLM_REGRESS_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == [*cli.COMMANDS] and done.stderr.strip() == ""
