"""A project whose versions are checked decides neither what is run nor what it is compared with: no
path of it becomes an option, and no file of it stands for a case, a lock, a release or a home
directory."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_vllm_regress.cli import main, split_arguments
from tests.helpers import ROOT
from tests.helpers.cases import CaseFile
from tests.integration.test_pipelines import audit_step, bash, runner

(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
SCRIPT = "#!/bin/sh\ntouch started\n"
LOG = """vLLM API server version 0.9.1
Traceback (most recent call last):
  File "/x/vllm/config.py", line 10, in <module>
    AutoConfig.register("aimv2", AIMv2Config)
ValueError: 'aimv2' is already used by a Transformers config, pick another name.
"""

__all__ = ["runner"]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project around the working directory with pins that have documented failures."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text("")
    (folder / "requirements.txt").write_text("vllm==0.8.4\n")
    monkeypatch.chdir(folder)
    return folder


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SCRIPT)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("option", ["--env=.", "--cases=", "--log-file="])
def test_no_path_is_an_option_of_the_hook(
    project: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    path = Path(option) / "lib" / "requirements.txt"
    program(project / path)
    assert HOOK["files"] and HOOK["entry"].startswith("vllm-regress ")
    entry = shlex.split(HOOK["entry"])[1:]
    assert main([*entry, str(path), "requirements.txt"]) == 2  # the script is no list of packages
    assert str(path) in capsys.readouterr().err
    (project / path).write_text("vllm==0.8.4\n")
    assert main([*entry, str(path)]) == 1
    assert str(path) in capsys.readouterr().out
    assert not (project / "started").exists()
    assert [entry.name for entry in project.iterdir() if entry.name.startswith("lib")] == []


@pytest.mark.parametrize(
    "command",
    [["audit"], ["uses"], ["explain"], ["compare", "0.8.4"], ["report"], ["fuzz", "replay"]],
)
@pytest.mark.parametrize("name", ["--cases=x", "-v"])
def test_behind_two_hyphens_everything_is_a_path(
    project: Path, capsys: pytest.CaptureFixture[str], command: list[str], name: str
) -> None:
    (project / name).write_text("{")
    main([*command, "--", name])
    printed = capsys.readouterr()
    assert name in printed.out + printed.err
    assert "Usage" not in printed.out


@pytest.mark.parametrize("name", ["run", "matrix", "ask"])
def test_an_argument_with_the_name_of_a_command_does_not_swallow_the_paths(name: str) -> None:
    given = ["audit", "--ignore", name, "--", "requirements.txt"]
    assert split_arguments(given) == (given, ())
    assert split_arguments(["--yes", "run", "a", "--", "-k", "b"]) == (
        ["--yes", "run", "a"],
        ("-k", "b"),
    )


@pytest.mark.parametrize("variable", ["SERVE", "IGNORE", "TARGETS"])
@pytest.mark.parametrize("value", ["--cases=cases", "--env=./evil"])
def test_no_input_of_the_action_is_an_option(
    runner: dict[str, str], project: Path, variable: str, value: str
) -> None:
    CaseFile(affected="<0.1").write(project / "cases")
    program(project / "evil")
    done = bash(audit_step()["run"], project, **{**runner, variable: value})
    assert done.returncode == 2 and "Usage" not in done.stdout, done.stdout
    assert value in done.stderr and not (project / "started").exists()


def test_the_action_imports_nothing_of_the_project(
    runner: dict[str, str], project: Path, tmp_path: Path
) -> None:
    for module in ("venv", "pip"):
        (project / f"{module}.py").write_text("open('started', 'w')")
    environment = tmp_path / "temp" / "vllm-regress-audit"
    shutil.rmtree(environment)
    python = program(tmp_path / "python")
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@" --without-pip\n')
    done = bash(audit_step()["run"], project, **{**runner, "PYTHON": str(python)})
    assert (environment / "bin" / "python").exists()
    assert "No module named pip" in done.stderr
    assert not (project / "started").exists()


def harmless_database(project: Path) -> None:
    """Give the project a case that concerns nothing, and a lock of a release that has nothing."""
    CaseFile(affected="<0.1").write(project / "cases")
    (project / "locks").mkdir()
    (project / "locks" / "vllm-0.8.4.txt").write_text("vllm==99.0\n")
    (project / "environments.toml").write_text(
        'default = "a"\n[environments]\na = {requirements = ["vllm==0.8.4"]}\n'
    )


def failures(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    """Return the exit code of a command and what it prints, without the place of the list."""
    status = main([*arguments])
    return status, capsys.readouterr().out


ANSWERS: dict[str, list[str]] = {
    "list": ["audit", "requirements.txt"],
    "requirement": ["audit", "vllm==0.8.4"],
    "environment": ["audit", "--env", "vllm-0.8.4"],
    "sarif": ["audit", "requirements.txt", "--format", "sarif"],
    "releases": ["audit", "--releases", ">=0.8,<0.9"],
    "log": ["explain", "server.log"],
    "change": ["compare", "0.8.3", "0.8.4"],
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_project_does_not_replace_what_is_known(
    project: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (project / "server.log").write_text(LOG)
    expected = failures(capsys, *ANSWERS[name])
    harmless_database(project)
    assert failures(capsys, *ANSWERS[name]) == expected
    assert expected[0] == (0 if name == "releases" else 1)


@pytest.mark.parametrize("name", ["list", "log", "change"])
def test_cases_that_are_named_are_used(
    project: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (project / "server.log").write_text(LOG)
    harmless_database(project)
    undocumented = 5 if name == "log" else 0
    assert failures(capsys, "--cases", "cases", *ANSWERS[name])[0] == undocumented


def test_the_audit_says_which_cases_it_used(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harmless_database(project)
    count = len(list((ROOT / "cases").glob("*/case.toml")))
    assert f"cases: the {count} built-in ones" in failures(capsys, "audit", "requirements.txt")[1]
    assert main(["audit", "requirements.txt", "--format", "json"]) == 1
    assert f"cases: the {count} built-in ones" in capsys.readouterr().err
    assert (
        "cases: 1 of cases" in failures(capsys, "--cases", "cases", "audit", "requirements.txt")[1]
    )


def test_commands_that_run_use_the_cases_of_the_project(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    CaseFile(id="mine").write(project / "cases")
    assert main(["list"]) == 0
    assert "mine" in capsys.readouterr().out
    assert main(["matrix", "vllm-17173", "--env", "vllm-0.8.4", "--dry-run"]) == 2
    assert "vllm-17173" in capsys.readouterr().err


NAMED: dict[str, Callable[[], list[str]]] = {
    "vllm==0.8.4": lambda: ["audit", "vllm==0.8.4"],
    "vllm-0.8.4": lambda: ["audit", "--env", "vllm-0.8.4"],
    "0.8.4": lambda: ["compare", "0.8.3", "0.8.4"],
}


@pytest.mark.parametrize("name", NAMED)
def test_no_file_stands_for_a_release_or_environment(
    project: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    expected = failures(capsys, *NAMED[name]())
    program(project / name)
    assert failures(capsys, *NAMED[name]()) == expected
    (project / name).write_text("vllm==99.0\n")
    assert failures(capsys, *NAMED[name]()) == expected
    assert not (project / "started").exists()


def test_a_folder_of_the_project_is_not_the_home_directory(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = project / "home"
    monkeypatch.setenv("HOME", str(home))
    for folder, pin in ((home, "requests==2.32.0"), (project / "~", "vllm==0.8.4")):
        folder.mkdir()
        (folder / "requirements.txt").write_text(f"{pin}\n")
    assert main(["audit", "--", "~/requirements.txt"]) == 1
    (project / "~" / "requirements.txt").unlink()
    capsys.readouterr()
    assert main(["audit", "--", "~/requirements.txt"]) == 2
    assert str(home / "requirements.txt") in capsys.readouterr().err  # without vLLM


@pytest.mark.parametrize("name", ["--cases=evil", "$(touch started)", "\x1b[2J", "a b", "-v", "A"])
def test_a_shell_completes_only_ids_of_cases(project: Path, name: str) -> None:
    CaseFile(id="mine").write(project / "cases")
    (project / "cases" / name).mkdir()
    (project / "cases" / name / "case.toml").write_text("")
    done = subprocess.run(
        [Path(sys.executable).with_name("vllm-regress")],
        env={
            **os.environ,
            "_VLLM_REGRESS_COMPLETE": "complete_bash",
            "COMP_WORDS": "vllm-regress show ",
            "COMP_CWORD": "2",
            "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split("\n") in (["mine"], ["mine", ""]), done


def test_the_documents_of_answers_stay_documents(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for form in ("json", "sarif"):
        main(["audit", "requirements.txt", "--format", form])
        json.loads(capsys.readouterr().out)
