"""tox.ini, environments.toml and the workflows agree.

Workflows are pinned, only call tox, and have read permissions only.
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from filelock import FileLock

from pytest_vllm_regress.environments.recipes import load
from pytest_vllm_regress.runner import slots
from tests.helpers import ROOT

FACTORS = re.compile(r"\[testenv:vllm\{([\d.,]+)\}-(sim|cpu|gpu)\]")
TINY = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "tiny"
version = "1"
[tool.hatch.build.targets.wheel]
include = ["tiny.py"]
"""
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def tox_environments() -> dict[str, set[str]]:
    """Return the versions of vLLM in tox.ini by device."""
    return {
        device: set(versions.split(","))
        for versions, device in FACTORS.findall((ROOT / "tox.ini").read_text())
    }


def sections() -> set[str]:
    """Return the names of the tox environments without the vLLM ones."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "tox.ini")
    names = {
        name.removeprefix("testenv:") for name in parser.sections() if name.startswith("testenv:")
    }
    pythons = re.search(r"\[testenv:py\{([\d,]+)\}\]", (ROOT / "tox.ini").read_text())
    assert pythons is not None
    return {name for name in names if "{" not in name} | {
        f"py{version}" for version in pythons[1].split(",")
    }


def test_tox_has_every_environment_and_no_other() -> None:
    recipes = load(ROOT / "environments.toml").recipes
    plain = {"sim": re.compile(r"vllm-([\d.]+)"), "cpu": re.compile(r"vllm-cpu-([\d.]+)")}
    listed = {
        device: {match[1] for name in recipes if (match := pattern.fullmatch(name))}
        for device, pattern in plain.items()
    }
    named = tox_environments()
    assert {device: named[device] for device in ("sim", "cpu")} == listed
    assert named["gpu"] <= listed["sim"]


def test_tox_names_resolve_to_locked_environments() -> None:
    file = load(ROOT / "environments.toml")
    for device, versions in tox_environments().items():
        for version in versions:
            recipe = file.resolve(f"vllm{version}-{device}")
            assert recipe.name == f"vllm{'-cpu' if device == 'cpu' else ''}-{version}"
            assert recipe.device == device
            assert recipe.lock is not None


def test_every_python_of_the_classifiers_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"Python :: 3\.(\d+)", " ".join(project["classifiers"]))
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())["jobs"]
    assert {f"py3{minor}" for minor in named} <= set(
        jobs["tests"]["strategy"]["matrix"]["env"]
    ) & sections()


def test_the_commands_for_tests_leave_nothing_out_and_repeat_nothing() -> None:
    """``full`` is everything; ``.ci/run`` runs the README's selection and then its complement."""
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    readme = (
        (ROOT / "README.md")
        .read_text()
        .partition("<!-- test-command -->")[2]
        .partition("<!-- end -->")[0]
    )
    fast = 'pytest tests -n 4 --dist worksteal -m "not engine and not slow"'
    assert f"&& .venv/bin/{fast}\n" in readme
    assert tox["testenv:tests"]["commands"] == f"{fast} {{posargs}}"
    assert tox["testenv:full"]["commands"] == "pytest tests -n 2 --dist worksteal {posargs}"
    assert (
        (ROOT / ".ci" / "run")
        .read_text()
        .endswith('\n.venv/bin/tox run -e full -- -m "engine or slow"\n')
    )


@pytest.mark.parametrize(
    ("command", "status", "ran"), [("true", 0, True), ("false && true", 1, False)]
)
def test_ci_runs_the_rest_only_after_the_readme_s_command(
    tmp_path: Path, command: str, status: int, ran: bool
) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    (tmp_path / "README.md").write_text(
        f"<!-- test-command -->\n```sh\n{command}\n```\n<!-- end -->\n"
    )
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for program in (tmp_path / ".venv" / "bin" / "tox", tmp_path / "chromedriver"):
        program.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > rest\n')
        program.chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([tmp_path / ".ci" / "run"], env=variables, check=False)
    assert done.returncode == status
    assert (tmp_path / "rest").exists() is ran
    assert not ran or (tmp_path / "rest").read_text().splitlines()[-2:] == ["-m", "engine or slow"]


@pytest.mark.slow
@pytest.mark.parametrize("order", ["tox first", "venv first"])
def test_tox_leaves_the_virtual_environment_of_the_readme_alone(tmp_path: Path, order: str) -> None:
    """Both commands run in either order, twice."""
    shutil.copy(ROOT / "tox.ini", tmp_path)
    (tmp_path / "pyproject.toml").write_text(TINY)
    (tmp_path / "tiny.py").touch()
    settings = ["-x", "testenv.extras=", "-x", "testenv:lint.commands=python -V"]
    tox = [sys.executable, "-m", "tox", "run", "-qq", "-e", "lint", *settings]
    venv = [sys.executable, "-m", "venv", "--without-pip", ".venv"]
    for command in [tox, venv, tox, venv] if order == "tox first" else [venv, tox, venv, tox]:
        completed = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert completed.returncode == 0, completed.stdout + completed.stderr
    assert (tmp_path / ".venv" / "bin" / "python").exists()


def steps(workflow: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of all jobs."""
    for job in workflow["jobs"].values():
        yield from job["steps"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_are_pinned_read_only_and_call_tox(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    named = sections() | {
        f"vllm{version}-{device}"
        for device, versions in tox_environments().items()
        for version in versions
    }
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 120
        # Trusted publishing needs a token of the job's own identity, in an environment of its own.
        publishes = (path.stem, name) == ("release", "publish")
        assert job.get("permissions", {}) == ({"id-token": "write"} if publishes else {})
        assert job.get("environment") == ("release" if publishes else None)
        matrix = job.get("strategy", {}).get(
            "matrix", {}
        )  # an expression if another job creates it
        assert isinstance(matrix, str) or set(matrix.get("env", [])) <= named
    for step in steps(workflow):
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]), step
            continue
        command = step["run"].removeprefix('echo "shards=$(').split()
        assert (
            command[:2] == ["tox", "run"]
            or "install tox" in step["run"]
            or "GITHUB_STEP_SUMMARY" in step["run"]
            or step.get("name") == "The tag is the version of the package"
        ), step
        if command[:2] == ["tox", "run"] and "$" not in command[3]:
            assert command[3] in named
        assert "${{ github.event" not in step["run"]
    assert all(
        re.search(r"# v\d", line) for line in path.read_text().splitlines() if "uses:" in line
    )


def test_the_gpu_job_gets_its_variables_and_always_uploads_its_results() -> None:
    """tox hides environment variables except those in pass_env."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "tox.ini")
    needed = {
        "CUDA_HOME",
        "CUDA_PATH",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "NCCL_*",
        "VLLM_CACHE_ROOT",
    }
    assert needed | {"NVIDIA_VISIBLE_DEVICES"} <= set(parser["testenv"]["pass_env"].split())
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "gpu.yml").read_text())["jobs"]["gpu"]
    (run,) = [step for step in job["steps"] if "--vllm-report" in step.get("run", "")]
    assert "/results/" in run["run"]
    assert "if" not in run and not run.get("continue-on-error")
    (upload,) = [step for step in job["steps"] if "upload-artifact" in step.get("uses", "")]
    assert upload["if"] == "always()"
    assert "results/" in upload["with"]["path"].split()


def test_slots_depend_on_cores_and_memory() -> None:
    assert [slots.room(*machine) for machine in ((2, 24), (8, 64), (64, 30), (1, 1))] == [
        2,
        8,
        5,
        1,
    ]


def test_slots_are_shared_and_given_back(tmp_path: Path) -> None:
    inside = threading.Event()

    def second() -> None:
        with slots.slot(tmp_path, 2):
            inside.set()

    with slots.slot(tmp_path, 2) as first, FileLock(tmp_path / f"{1 - first}.lock"):
        waiting = threading.Thread(target=second)
        waiting.start()
        assert not inside.wait(1.5 * slots.POLL_S)
    waiting.join(60)
    assert inside.is_set()


def test_a_slot_runs_the_command_and_returns_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path))
    assert slots.main(["sh", "-c", "exit 7"]) == 7
