"""`vllm-regress export`: the script that it writes shows the failure without this project."""

from __future__ import annotations

import dataclasses
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.observation import Observation
from pytest_vllm_regress.cases.proofs.rejudge import save_observations
from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.environments import uv
from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.recipes import Recipe
from pytest_vllm_regress.errors import Kind, Part, UsageError
from pytest_vllm_regress.output.export.issue import collect_env
from pytest_vllm_regress.util.masking import mask
from tests.helpers import ROOT
from tests.helpers.cases import CaseFile

PROBE = '''"""Count."""
import os


def count(wanted):
    return wanted if os.environ.get("REPAIRED") else 1
'''
TEST = '''"""Count."""
import pytest

from pytest_vllm_regress import AtWork, Probe

pytestmark = pytest.mark.vllm_case("demo")


@pytest.mark.parametrize("wanted", [8])
def test_count(vllm_probe: Probe, vllm_at_work: AtWork, wanted: int) -> None:
    vllm_at_work("one is counted", vllm_probe("count", wanted=1) == 1)
    counted = vllm_probe("count", wanted=wanted)
    assert counted == wanted, f"expected {wanted}, got {counted}"
'''


def observed(case: Case, test: str) -> Case:
    seen = Observation(
        Kind.WRONG_RESULT, "probe", "expected 8, got 1", {Part.ASSERTION: mask("expected 8, got 1")}
    )
    result = TestResult(
        case.id,
        test,
        Verdict.REPRODUCED,
        "",
        "sim",
        "old",
        {"vllm": "0.8.4"},
        observation=seen,
        code="0" * 16,
    )
    save_observations(case, [RunResult((result,))])
    return case


@pytest.fixture
def case(tmp_path: Path) -> Case:
    files = {"probe.py": PROBE, "test_demo.py": TEST}
    return observed(CaseFile().write(tmp_path / "cases", files), "demo/test_demo.py::test_count[8]")


def export(case: Case, *arguments: str) -> int:
    return cli.main(["--cases", str(case.directory.parent), "export", *arguments])


@pytest.mark.parametrize(("repaired", "status"), [("", 1), ("1", 0)])
def test_the_script_shows_the_failure_and_its_absence(
    case: Case, tmp_path: Path, repaired: str, status: int
) -> None:
    script = tmp_path / "script.py"
    assert export(case, case.id, "-o", str(script)) == 0
    assert '#     "vllm==0.8.4",' in script.read_text()
    assert "pytest" not in script.read_text()
    run = subprocess.run(
        [sys.executable, "-I", str(script)],
        env={"REPAIRED": repaired},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == status, run.stdout + run.stderr


def test_a_hyphen_as_output_prints(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert export(case, case.id, "-o", "-") == 0
    assert "# /// script" in capsys.readouterr().out
    assert export(case, case.id, "--format", "osv", "-o", "-") == 0
    assert json.loads(capsys.readouterr().out)["id"].endswith(case.id)
    assert [path.name for path in tmp_path.iterdir()] == ["cases"]


def test_a_file_in_place_of_the_directory_of_records_is_refused(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (taken := tmp_path / "a.txt").write_text("x")
    assert export(case, case.id, "--format", "osv", "-o", str(taken)) == 2
    assert f"--out {taken}: not a directory. For osv records, name a directory" in " ".join(
        capsys.readouterr().err.split()
    )
    assert taken.read_text() == "x"


def test_a_report_has_the_sections_of_the_form(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(case, case.id, "--format", "issue") == 0
    text = capsys.readouterr().out
    assert "### Your current environment" in text and "vLLM Version: 0.8.4" in text
    assert "expected 8, got 1" in text and "# /// script" in text


def test_a_report_of_a_ci_failure_has_the_sections_of_its_form(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(case, case.id, "--format", "ci-failure") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Title: [CI Failure]: ")
    headings = [line for line in lines if line.startswith("### ")]
    assert headings == [
        "### Name of failing test",
        "### Basic information",
        "### 🧪 Describe the failing test",
        "### 📝 History of failing test",
        "### CC List.",
    ]
    assert "` demo/test_demo.py::test_count[8] `" in lines and "- [ ] Flaky test" in lines


@pytest.mark.parametrize("form", ["issue", "ci-failure"])
def test_a_report_names_the_releases_and_commits_at_the_ends(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--cases", str(ROOT / "cases"), "export", "vllm-17173", "--format", form]) == 0
    text = capsys.readouterr().out
    assert "Last bad release: vllm 0.8.4. First good release: 0.8.5 (both were run)" in text
    assert re.search(
        r"First good commit: vllm [0-9a-f]{40} .*/pull/16863>; last bad commit: its parent [0-9a-f]{40} ",
        text,
    )
    assert "First bad release: vllm 0.7.0. Last good release: 0.6.6.post1 (" in text


class OneEnvironment(EnvironmentCache):
    """A cache with one environment, whose interpreter is this one."""

    def __init__(self, folder: Path, script: str) -> None:
        super().__init__(folder)
        self._folder = folder / "built"
        place = self._folder / "lib" / "python3.11" / "site-packages" / "vllm"
        place.mkdir(parents=True)
        (place / "collect_env.py").write_text(script)
        (self._folder / "bin").mkdir()
        (self._folder / "bin" / "python").symlink_to(sys.executable)

    def built(self, recipe: Recipe) -> Path | None:
        return self._folder / "bin" / "python" if recipe.name == "vllm-0.8.4" else None


def test_collect_env_runs_in_the_environment_with_uv_and_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_" + "a" * 34)
    script = "import os, shutil; print(os.environ['VIRTUAL_ENV'], shutil.which('uv'), os.environ.get('HF_TOKEN'))"
    folder, uv, token = collect_env("vllm-0.8.4", OneEnvironment(tmp_path, script)).split()
    assert (folder, token) == (str(tmp_path / "built"), "None") and uv.endswith("/uv")


@pytest.mark.parametrize(
    ("environment", "script", "message"),
    [
        ("vllm-0.8.5", "", "env build vllm-0.8.5"),
        ("vllm-0.8.4", "raise SystemExit('no torch')", "status 1.*no torch"),
    ],
)
def test_a_report_without_output_of_collect_env_says_what_is_missing(
    environment: str, script: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        collect_env(environment, OneEnvironment(tmp_path, script))


def test_collect_env_is_for_reports(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(case, case.id, "--collect-env") == 2
    assert "--format issue or ci-failure" in capsys.readouterr().err


class OsvService(http.server.BaseHTTPRequestHandler):
    """Answers queries of a package and a version like the OSV database, from a folder of records."""

    records: tuple[dict[str, Any], ...] = ()

    def do_POST(self) -> None:
        query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        vulnerabilities = [record for record in self.records if self.has(record, query)]
        content = json.dumps({"vulns": vulnerabilities} if vulnerabilities else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    @staticmethod
    def has(record: dict[str, Any], query: dict[str, Any]) -> bool:
        """Evaluate the events as the OSV schema describes it."""
        (affected,) = record["affected"]
        version, holds = Version(query["version"]), False
        for event in affected["ranges"][0]["events"]:
            if "introduced" in event:
                holds = event["introduced"] == "0" or version >= Version(event["introduced"])
            elif "fixed" in event:
                holds = holds and version < Version(event["fixed"])
            else:
                holds = holds and version <= Version(event["last_affected"])
        return holds and affected["package"] == query["package"] | {
            "purl": affected["package"]["purl"]
        }


@pytest.mark.slow
def test_pip_audit_reads_the_records(tmp_path: Path) -> None:
    database = tmp_path / "database"
    assert (
        cli.main(["--cases", str(ROOT / "cases"), "export", "--format", "osv", "-o", str(database)])
        == 0
    )
    records = tuple(json.loads(file.read_text()) for file in database.iterdir())
    handler = type("Handler", (OsvService,), {"records": records})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = {
            version: pip_audit(server.server_port, version, tmp_path)
            for version in ("0.8.4", "0.8.5")
        }
        server.shutdown()
    assert found["0.8.4"]["x_VLLMREGRESS-vllm-17173"] == ["0.8.5"]
    assert "x_VLLMREGRESS-vllm-17173" not in found["0.8.5"] and found["0.8.5"]


def pip_audit(port: int, version: str, folder: Path) -> dict[str, list[str]]:
    """Return the fixed versions of each finding of pip-audit in a release of vLLM."""
    (folder / "requirements.txt").write_text(f"vllm=={version}\n")
    options = (
        "--vulnerability-service",
        "osv",
        "--osv-url",
        f"http://127.0.0.1:{port}/v1/query",
        "--format",
        "json",
    )
    done = subprocess.run(
        [
            uv.program(),
            "tool",
            "run",
            "pip-audit",
            "-r",
            "requirements.txt",
            "--no-deps",
            "--disable-pip",
            *options,
        ],
        cwd=folder,
        env={**os.environ, "no_proxy": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode in (0, 1), done.stderr
    (dependency,) = json.loads(done.stdout)["dependencies"]
    return {found["id"]: found["fix_versions"] for found in dependency["vulns"]}


def test_a_test_that_needs_the_harness_is_refused_with_the_reason(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    test = case.directory / "test_demo.py"
    test.write_text(test.read_text().replace("wanted: int", "wanted: int, vllm_sidecar"))
    assert export(case, case.id) == 2
    assert "test_count uses vllm_sidecar" in capsys.readouterr().err


def test_a_hang_is_refused(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    path = case.directory / "case.toml"
    hang = dataclasses.replace(
        CaseFile(), kind="hang", omits="the trigger", control="changes = { seed = 1 }"
    )
    path.write_text(hang.text().replace("changes = { seed = 1 }", "seed = 1"))
    assert export(case, case.id) == 2
    assert "cannot show this (hang)" in capsys.readouterr().err


@pytest.mark.parametrize("case_id", ["vllm-17173", "lmfe-124", "vllm-18108", "xgrammar-286"])
def test_scripts_of_built_in_cases_import_nothing_of_ours(case_id: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    assert cli.main(["--cases", str(ROOT / "cases"), "export", case_id, "-o", str(script)]) == 0
    text = script.read_text()
    compile(text, str(script), "exec")
    assert "import pytest_vllm_regress" not in text and "from pytest_vllm_regress" not in text


def test_uv_resolves_the_requirements_of_a_script_as_they_were_recorded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """vLLM 0.8.4 does not start with today's transformers, and does not allow lm-format-enforcer
    0.10.3."""
    assert cli.main(["--cases", str(ROOT / "cases"), "export", "lmfe-124"]) == 0
    header = re.search(r"# /// script\n(.*?)# ///\n", capsys.readouterr().out, re.DOTALL)
    assert header is not None
    settings = tomllib.loads(header[1].replace("# ", "").replace("#", ""))["tool"]["uv"]
    assert settings["exclude-newer"] == "2025-04-20"
    assert "lm-format-enforcer==0.10.3" in settings["override-dependencies"]
