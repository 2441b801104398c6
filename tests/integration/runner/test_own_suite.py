"""``matrix -- pytest``: a user's own suite runs with the user's own configuration, and a run that
ends early says what was not run. No environment is built: the suites use no engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.runner.batch import Batch, RunOptions
from pytest_vllm_regress.runner.executors import ThreadsExecutor
from pytest_vllm_regress.runner.progress import Progress
from pytest_vllm_regress.runner.run import run_suite
from pytest_vllm_regress.runner.suite import SuiteOutcome, suite_command
from tests.helpers import FEWER_PLUGINS

INI = """
[pytest]
addopts = --strict-markers --junitxml=own.xml
vllm_env = vllm-9.9.9
markers = mine: ours alone
"""
SUITE = """
import pytest

@pytest.fixture
def broken():
    raise LookupError("no fixture")

@pytest.mark.mine
def test_passes(): pass
def test_fails():
    print("printed")
    assert 1 == 2
def test_is_skipped(): pytest.skip("no reason")
@pytest.mark.xfail(reason="known")
def test_is_expected_to_fail(): assert 0
def test_error(broken): pass
def test_environment(pytestconfig): assert pytestconfig.getoption("vllm_env") == ["a"]
"""
Run = Callable[..., SuiteOutcome]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    for name in ("PYTEST_TIMEOUT", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTEST_ADDOPTS", FEWER_PLUGINS)

    def run(suite: str, *arguments: str, ini: str = INI, environments: str = "a") -> SuiteOutcome:
        (tmp_path / "pytest.ini").write_text(ini)
        (tmp_path / "test_own.py").write_text(suite)
        command = suite_command(["python", "-m", "pytest", *arguments])
        executor = ThreadsExecutor(lambda name: None, 1, print)
        batches = [Batch(name, (), {}) for name in environments]
        options = RunOptions(suite=command)
        return run_suite(batches, executor, options, Progress(), lambda run: None)

    return run


def outcomes(outcome: SuiteOutcome) -> list[dict[str, str]]:
    return [
        {name.partition("::")[2]: test.outcome.value for name, test in run.tests.items()}
        for run in outcome.runs
    ]


EXPECTED = {
    "test_passes": "passed",
    "test_fails": "failed",
    "test_is_skipped": "skipped",
    "test_is_expected_to_fail": "skipped",
    "test_error": "error",
    "test_environment": "passed",
}


@pytest.mark.parametrize("workers", [(), ("-n", "1", "--dist", "loadgroup")])
def test_test_by_environment(run: Run, tmp_path: Path, workers: tuple[str, ...]) -> None:
    outcome = run(SUITE, *workers, environments="ab")
    assert outcomes(outcome) == [EXPECTED, {**EXPECTED, "test_environment": "failed"}]
    assert [run.problems for run in outcome.runs] == [(), ()] and outcome.exit_code == 1
    text = outcome.runs[0].tests["test_own.py::test_fails"].text
    assert "assert 1 == 2" in text and "printed" in text
    assert (tmp_path / "own.xml").exists()  # what the user's configuration asks for


def test_a_suite_that_ends_early_says_what_was_not_run(run: Run) -> None:
    dies = "import os\ndef test_one(): pass\ndef test_two(): os._exit(7)\ndef test_three(): pass\n"
    first = run(dies).runs[0]
    assert [test.outcome.value for test in first.tests.values()] == ["passed", "not run", "not run"]
    assert first.problems[0].startswith("a: pytest ended with status 7. Its output ends with:")


def test_what_cannot_be_collected_is_an_error(run: Run) -> None:
    first = run("import no_such_module\n").runs[0]
    assert first.tests["test_own.py"].outcome.value == "error"
    assert "no_such_module" in first.tests["test_own.py"].text
    (problem,) = run("").runs[0].problems
    assert problem.startswith("a: pytest found no test")


@pytest.mark.parametrize(("ini", "limit"), [(INI, 1800), (INI + "timeout = 5\n", 5)])
def test_each_test_has_a_limit_unless_the_user_sets_one(run: Run, ini: str, limit: int) -> None:
    suite = f"def test(pytestconfig): assert pytestconfig._env_timeout == {limit}\n"
    assert run(suite, ini=ini).exit_code == 0


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest_vllm_regress", "matrix", *arguments]


def cli(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTEST_ADDOPTS": FEWER_PLUGINS}
    return subprocess.run(
        command(*arguments),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_command_refuses_what_it_would_ignore(tmp_path: Path) -> None:
    for arguments, message in (
        (["--env", "vllm-0.8.5", "--", "tests/"], "-- pytest tests/"),
        (["--env", "vllm-0.8.5", "--base", "last"], "--base compares a suite of your own"),
        (["--dry-run", "--format", "github", "--", "tests/"], "-- pytest tests/"),
        (["--", "pytest"], "--releases or --env"),
        (["--env", "vllm-0.8.5", "--fresh", "--", "pytest"], "--fresh: not with a suite"),
    ):
        done = cli(tmp_path, *arguments)
        assert done.returncode == 2 and message in done.stderr


@pytest.fixture
def interpreter(tmp_path: Path) -> str:
    """An interpreter with a vLLM of which only the version is known."""
    folder = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    info = site / "vllm-0.11.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.11.2\n")
    return str(folder / "bin" / "python")


def test_the_command_shows_documented_failures(tmp_path: Path, interpreter: str) -> None:
    text = "Regex parsing error at position 3: Group modifier flag is not supported"
    (tmp_path / "test_own.py").write_text(f"def test(): raise RuntimeError({text!r})\n")
    done = cli(
        tmp_path, "--env", interpreter, "--out", "o.json", "--", "pytest", "-p", "no:cacheprovider"
    )
    assert done.returncode == 1, done.stderr
    assert "failed: vllm-43920" in done.stdout
    (result,) = json.loads((tmp_path / "o.json").read_text())["runs"]
    documented: dict[str, Any] = result["tests"]["test_own.py::test"]["documented"]
    assert "vllm-43920" in documented["shown"]


def test_the_last_run_is_what_a_new_one_is_compared_with(
    tmp_path: Path, interpreter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    own = tmp_path / "test_own.py"
    suite = ("--env", interpreter, "--base", "last", "--", "pytest", "-p", "no:cacheprovider")
    own.write_text("def test_a(): pass\ndef test_b(): assert 0\n")
    first = cli(tmp_path, *suite)
    assert first.returncode == 1 and "the first run of this suite" in first.stdout, first
    assert cli(tmp_path, *suite).returncode == 0
    own.write_text("def test_a(): assert 0\ndef test_b(): assert 0\n")
    for _ in range(2):  # what is broken stays so
        broken = cli(tmp_path, *suite)
        assert broken.returncode == 1 and "passed in " in broken.stdout
    assert cli(tmp_path, *suite[:2], *suite[4:]).returncode == 1  # accepts it
    assert cli(tmp_path, *suite).returncode == 0


def test_an_interrupted_suite_keeps_what_has_ended(tmp_path: Path, interpreter: str) -> None:
    (tmp_path / "test_own.py").write_text(
        "import pathlib, time\ndef test_one(): pass\n"
        "def test_two():\n    pathlib.Path('reached').touch()\n    time.sleep(600)\n"
    )
    arguments = command("--env", interpreter, "--out", "o.json", "--", "pytest")
    process = subprocess.Popen(arguments, cwd=tmp_path, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "reached").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    (result,) = json.loads((tmp_path / "o.json").read_text())["runs"]
    outcomes = [test["outcome"] for test in result["tests"].values()]
    assert outcomes == ["passed", "not run"] and result["problems"] == ["interrupted"]
