"""What runs in other people's pipelines: the GitHub Action, the pre-commit hook, and the pipelines
in the documentation."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_vllm_regress.environments import uv
from pytest_vllm_regress.runner.shards import GITLAB_SETTINGS
from tests.helpers import ROOT
from tests.helpers.repositories import RepositoryBuilder

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
PAGE = (ROOT / "docs" / "how-to" / "run-in-pipelines.md").read_text()
STUB = """#!/bin/sh
printf '%s ' "$0" "$@" >> "$CALLS"
echo >> "$CALLS"
[ "$2" = upload ] && cat > uploaded.json
exit 0
"""
"""A program that records its arguments, and keeps what ``buildkite-agent pipeline upload`` reads.
"""


def pipeline(name: str) -> Any:
    """Return the file of that name from the documentation."""
    return yaml.safe_load(re.search(rf"```yaml\n# {re.escape(name)}\n(.*?)```", PAGE, re.DOTALL)[1])  # type: ignore[index]


def test_the_workflow_of_a_suite_runs_the_command(tmp_path: Path) -> None:
    def export(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest_vllm_regress", "export", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    workflow = yaml.safe_load(export("--format", "workflow", "--", "pytest", "-k", "a b").stdout)
    runs = [step["run"] for step in workflow["jobs"]["suite"]["steps"] if "run" in step]
    (run,) = [run for run in runs if run.startswith("vllm-regress")]
    assert run.endswith(" -- pytest -k 'a b'") and "--base suite.json" in run
    (tmp_path / "suite.json").write_text('{"runs": []}')
    run, count = re.subn("--releases '[^']+'", "--env vllm-0.33.0 --dry-run", run)  # no index
    done = bash(run, tmp_path)
    assert count == 1 and done.returncode == 0 and "vllm-0.33.0" in done.stdout, done.stderr
    for words in (("--format", "workflow", "vllm-17173"), ("vllm-17173", "--", "pytest")):
        assert "--format workflow runs a suite" in export(*words).stderr


def bash(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script with this interpreter's ``vllm-regress`` on the PATH, and with stubs for what
    only a CI system has."""
    stubs = folder / "stubs"
    stubs.mkdir(exist_ok=True)
    for name in ("buildkite-agent", "pip"):
        (stubs / name).write_text(STUB)
        (stubs / name).chmod(0o755)
    path = os.pathsep.join([str(stubs), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "CALLS": str(folder / "calls"), **variables}
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def runner(tmp_path: Path) -> dict[str, str]:
    """Variables of a GitHub runner, with an installed vllm-regress, and the inputs of the action
    with their defaults."""
    scripts = tmp_path / "temp" / "vllm-regress-audit" / "bin"
    scripts.mkdir(parents=True)
    (scripts / "python").write_text(STUB)
    (scripts / "python").chmod(0o755)
    (scripts / "vllm-regress").symlink_to(Path(sys.executable).with_name("vllm-regress"))
    (tmp_path / "requirements.txt").write_text("vllm==0.8.4\n")
    inputs = {
        name.upper().replace("-", "_"): str(declared["default"])
        for name, declared in ACTION["inputs"].items()
    }
    return inputs | {
        "PYTHON": sys.executable,
        "ACTION_PATH": str(ROOT),
        "RUNNER_TEMP": str(tmp_path / "temp"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
    }


def audit_step() -> dict[str, Any]:
    (step,) = [step for step in ACTION["runs"]["steps"] if step["id"] == "audit"]
    assert isinstance(step, dict)
    return step


def test_the_action_reports_the_failures_of_the_pins(
    runner: dict[str, str], tmp_path: Path
) -> None:
    done = bash(audit_step()["run"], tmp_path, **{**runner, "SARIF": "found.sarif"})
    assert done.returncode == 1, done.stderr
    assert "vllm-17173" in done.stdout and "vllm-17173" in (tmp_path / "summary").read_text()
    assert (tmp_path / "output").read_text() == "failures=true\n"
    assert json.loads((tmp_path / "found.sarif").read_text())["version"] == "2.1.0"
    assert (
        f"-m pip install --quiet --disable-pip-version-check {ROOT}"
        in (tmp_path / "calls").read_text()
    )


def test_the_inputs_of_the_action_reach_the_audit_as_data(
    runner: dict[str, str], tmp_path: Path
) -> None:
    inputs = {
        "TARGETS": "vllm==0.33.0\n\nlm-format-enforcer==0.11.3",
        "IGNORE": "*",
        "SERVE": "vllm serve $(touch x)",
    }
    done = bash(audit_step()["run"], tmp_path, **{**runner, **inputs})
    assert done.returncode == 2 and "--ignore '*'" in done.stderr
    assert not (tmp_path / "x").exists()
    done = bash(
        audit_step()["run"],
        tmp_path,
        **{**runner, **inputs, "IGNORE": "vllm-17173 lmfe-124", "SERVE": ""},
    )
    assert done.returncode in (0, 1), done.stderr
    assert "vllm==0.33.0" in done.stdout and "lm-format-enforcer==0.11.3" in done.stdout


def test_a_target_that_does_not_exist_fails_the_step(
    runner: dict[str, str], tmp_path: Path
) -> None:
    done = bash(
        audit_step()["run"],
        tmp_path,
        **{**runner, "TARGETS": "missing.txt", "SARIF": "found.sarif"},
    )
    assert done.returncode == 2 and "missing.txt" in done.stderr
    assert not (tmp_path / "found.sarif").exists()


def test_the_action_is_pinned_and_expands_no_input_in_its_script() -> None:
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", "")
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step.get("uses", "a/b@" + "0" * 40))
    given = set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text()))
    assert given == {*ACTION["inputs"]}
    table = set(re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE))
    assert table == {*ACTION["inputs"]}
    (step,) = [
        s
        for s in pipeline(".github/workflows/audit.yml")["jobs"]["audit"]["steps"]
        if "OWNER" in s["uses"]
    ]
    assert {*step["with"]} <= {*ACTION["inputs"]}


def test_the_gitlab_pipeline_starts_a_job_for_each_shard(tmp_path: Path) -> None:
    parent, settings = pipeline(".gitlab-ci.yml"), pipeline(GITLAB_SETTINGS)
    assert parent["include"] == [{"local": GITLAB_SETTINGS}]
    done = bash(
        "\n".join([*settings[".vllm-regress"]["before_script"], *parent["plan"]["script"]]),
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (included,) = parent["cells"]["trigger"]["include"]
    child = yaml.safe_load((tmp_path / included["artifact"]).read_text())
    assert child.pop("include") == parent["include"] and included["job"] in parent
    assert len(child) == 8
    assert all(job["extends"] in settings for job in child.values())
    understands_all(tmp_path, [command for job in child.values() for command in job["script"]])
    (path,) = {
        str(Path(path).parent) for job in child.values() for path in job["artifacts"]["paths"]
    }
    reports_on(tmp_path, path, settings["report"]["script"])


def test_the_buildkite_pipeline_uploads_a_step_for_each_shard(tmp_path: Path) -> None:
    plan, wait, report = pipeline(".buildkite/pipeline.yml")["steps"]
    assert wait["continue_on_failure"]
    done = bash(plan["command"], tmp_path)
    assert done.returncode == 0, done.stderr
    steps = json.loads((tmp_path / "uploaded.json").read_text())["steps"]
    assert len(steps) == 8
    understands_all(tmp_path, [step["command"] for step in steps])
    reports_on(tmp_path, "results", report["command"])
    assert (tmp_path / report["artifact_paths"]).exists()


def understands_all(folder: Path, commands: list[str]) -> None:
    """Check that the commands differ only in their shard's number, and that the first is a valid
    command line."""
    assert len({re.sub(r"\b\d(?=/8\b|\.json)", "N", command) for command in commands}) == 1, (
        commands
    )
    assert bash(f"{commands[0]} --help", folder).returncode == 0


def reports_on(folder: Path, results: str, script: list[str]) -> None:
    """Run the last job of a pipeline on a result of one shard."""
    (folder / results).mkdir()
    document = {"schema": 2, "tool_version": "0", "results": [], "problems": []}
    (folder / results / "shard-1.json").write_text(json.dumps(document))
    done = bash("\n".join(script), folder)
    assert done.returncode == 1 and "Traceback" not in done.stderr, (
        done.stderr
    )  # nothing was run: not as expected
    assert (folder / "page.html").exists()


def test_the_hook_is_for_lists_of_packages() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    (repository,) = pipeline(".pre-commit-config.yaml")["repos"]
    assert [used["id"] for used in repository["hooks"]] == [hook["id"]]
    for name in (
        "requirements.txt",
        "a/requirements-gpu.txt",
        "uv.lock",
        "pylock.toml",
        "b/pylock.gpu.toml",
    ):
        assert re.search(hook["files"], name), name
    for name in ("pyproject.toml", "requirements.in", "requirements.txt.j2", "my-uv.lock"):
        assert not re.search(hook["files"], name), name


@pytest.mark.slow
def test_pre_commit_runs_the_hook_on_changed_lists(tmp_path: Path) -> None:
    hooks, project = tmp_path / "hooks", tmp_path / "project"
    for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines():
        if not name.startswith(("tests/", "docs/")) or name.startswith("docs/findings/"):
            (hooks / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, hooks / name)
    project.mkdir()
    config = {
        "repos": [{"repo": str(hooks), "rev": "HEAD", "hooks": [{"id": "vllm-regress-audit"}]}]
    }
    (project / ".pre-commit-config.yaml").write_text(json.dumps(config))
    (project / "requirements.txt").write_text("vllm==0.8.4\n")
    (project / "unrelated.txt").write_text("vllm==0.8.4\n")
    for repository in (hooks, project):
        commands = (
            ["init", "-q"],
            ["add", "-A"],
            ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"],
        )
        for command in commands:
            subprocess.run(["git", *command], cwd=repository, check=True)
    done = run_hook(project, tmp_path)
    assert (
        done.returncode == 1 and "vllm-17173" in done.stdout and "unrelated.txt" not in done.stdout
    ), done.stdout
    (project / "requirements.txt").write_text("requests==2.32.0\n")
    assert "no package that a case is about" in run_hook(project, tmp_path).stdout


def run_hook(project: Path, temporary: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(uv.program()), "tool", "run", "pre-commit", "run", "--all-files", "--verbose"],
        cwd=project,
        env={**os.environ, "PRE_COMMIT_HOME": str(temporary / "pre-commit")},
        capture_output=True,
        text=True,
        timeout=500,
    )


def test_a_pull_request_to_a_fork_is_tried_against_its_base(tmp_path: Path) -> None:
    steps = pipeline(".github/workflows/try.yml")["jobs"]["try"]["steps"]
    (step,) = (step for step in steps if " try " in step.get("run", ""))
    builder = RepositoryBuilder(tmp_path / "fork")
    builder.commit("first", {"vllm/__init__.py": ""})
    summary = str(tmp_path / "summary")
    done = bash(step["run"], builder.place, BASE="HEAD", GITHUB_STEP_SUMMARY=summary)
    assert done.returncode == 2
    assert ".: its vllm/ is that of" in done.stderr
    assert (builder.place / "comment.md").exists()
