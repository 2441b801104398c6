"""Commands that only read files start fast, and without what only Linux has."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
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
    "jinja2",
    "markdown_it",
    "yaml",
    "asyncio",
    "multiprocessing",
    "pytest_vllm_regress.engines.gpus",
    "pytest_vllm_regress.engines.processes",
    "pytest_vllm_regress.runner",
    "pytest_vllm_regress.plugin",
)
NEEDED = {
    "audit": {"jinja2"},
    "explain": {"jinja2"},
    "report": {"rich"},
    "pages": {"rich", "jinja2", "markdown_it"},
    "site": {"jinja2", "markdown_it"},
    "checked": {"pytest", "hypothesis"},
}
"""What a command imports of these: to print a table, to fill a template, to write pages, to check the patterns of cases
of one's own."""
COMMANDS = {
    "list": ["list"],
    "show": ["show", "vllm-17173"],
    "audit": ["audit", "vllm==0.8.4", "--serve", "vllm serve M"],
    "explain": ["explain", str(ROOT / "pytest_vllm_regress" / "data" / "sound" / "vllm-0.8.5.log")],
    "compare": ["compare", "0.8.4", "0.10.2"],
    "uses": ["uses", str(ROOT / "tests" / "helpers")],
    "export": ["export", "vllm-17173", "--format", "osv"],
    "report": ["report", "RESULTS", "--format", "markdown"],
    "pages": ["report", "RESULTS", "--out", "FOLDER/page.html", "--out", "FOLDER/pages"],
    "site": [
        "--cases",
        "FEW",
        "site",
        "--out",
        "FOLDER/site",
    ],  # all releases times all cases take seconds
    "checked": ["--cases", "FEW", "show", "vllm-17173"],
}
WRITING = {"judge", "new"}
"""Commands that write cases, or judge what runs wrote."""
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
    few = tmp_path / "cases"
    shutil.copytree(ROOT / "cases" / "vllm-17173", few / "vllm-17173")
    results = tmp_path / "results.json"
    results.write_text('{"schema": 2, "tool_version": "0", "results": [], "problems": []}')
    places = {"RESULTS": str(results), "FEW": str(few)}
    arguments = [places.get(word, word.replace("FOLDER", str(tmp_path))) for word in command]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_nothing_of_linux_is_needed(command: list[str], tmp_path: Path) -> None:
    run(WITHOUT_LINUX + RUN.format(names=()), command, tmp_path)


@pytest.mark.parametrize("name", sorted({*COMMANDS} - {"export"}))
def test_nothing_heavy_is_imported(name: str, tmp_path: Path) -> None:
    run(RUN.format(names=sorted({*HEAVY} - NEEDED.get(name, set()))), COMMANDS[name], tmp_path)


def test_every_command_that_only_reads_files_is_started_here() -> None:
    reading = {name for name, entry in cli.COMMANDS.items() if not entry.starts}
    assert reading - WRITING <= {word for command in COMMANDS.values() for word in command}
