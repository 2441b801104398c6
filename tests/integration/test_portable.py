"""Commands that only read files start fast, and without what only Linux has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT

LINUX_ONLY = ("fcntl", "resource", "pwd", "grp", "termios", "posix_ipc")
OF_POSIX = (
    "O_DIRECTORY",
    "O_NOFOLLOW",
    "O_NONBLOCK",
    "O_CLOEXEC",
    "O_NOCTTY",
    "getuid",
    "geteuid",
    "sched_getaffinity",
)
"""Names of ``os`` that Windows does not have."""
HEAVY = (
    "vllm",
    "torch",
    "numpy",
    "pytest",
    "hypothesis",
    "httpx",
    "rich",
    "ray",
    "psutil",
    "pynvml",
    "safetensors",
    "tomlkit",
)
COMMANDS = {
    "list": ["list"],
    "show": ["show", "vllm-17173"],
    "audit": ["audit", "vllm==0.8.4", "--serve", "vllm serve M"],
    "explain": ["explain", str(ROOT / "pytest_vllm_regress" / "data" / "sound" / "vllm-0.8.5.log")],
    "export": ["export", "vllm-17173", "--osv"],
    "report": ["report", "RESULTS", "--markdown", "-"],
    "pages": ["report", "RESULTS", "--html", "FOLDER/page.html", "--pages", "FOLDER/pages"],
    "site": ["site", "FOLDER/site"],
}
WITHOUT_LINUX = f"""
import builtins, io, os, sys
import asyncio, multiprocessing, shutil, tempfile
import filelock, jinja2, jsonschema, markdown_it, packaging, platformdirs, regex, rich.table, typer, yaml  # they work there
for name in {LINUX_ONLY!r}:
    sys.modules[name] = None
for name in {OF_POSIX!r}:
    if hasattr(os, name):
        delattr(os, name)
opened = builtins.open
def without_proc(file, *arguments, **options):
    if str(file).startswith("/proc"):
        raise FileNotFoundError(file)
    return opened(file, *arguments, **options)
builtins.open = io.open = without_proc
"""
RUN = """
import sys
from pytest_vllm_regress import cli
status = cli.main(sys.argv[1:])
loaded = sorted(name for name in {names!r} if sys.modules.get(name))
assert not loaded, loaded
sys.exit(0 if status in (0, 1) else 9)
"""


def run(code: str, command: list[str], tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    results.write_text('{"schema": 2, "tool_version": "0", "results": [], "problems": []}')
    arguments = [str(results) if word == "RESULTS" else word.replace("FOLDER", str(tmp_path)) for word in command]
    done = subprocess.run(
        [sys.executable, "-c", code, "--cases", str(ROOT / "cases"), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_nothing_of_linux_is_needed(command: list[str], tmp_path: Path) -> None:
    run(WITHOUT_LINUX + RUN.format(names=()), command, tmp_path)


@pytest.mark.parametrize(
    "command", [COMMANDS[name] for name in ("list", "audit", "explain")], ids=["list", "audit", "explain"]
)
def test_nothing_heavy_is_imported(command: list[str], tmp_path: Path) -> None:
    run(RUN.format(names=HEAVY), command, tmp_path)
