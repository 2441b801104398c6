"""The command: declared ranges, exit codes, output formats, hostile projects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.answers.api_history.store import History
from pytest_vllm_regress.answers.uses.declared import declared_in
from pytest_vllm_regress.answers.uses.project import MAX_FILE
from tests.unit.answers.audit.test_audit import SARIF_ESSENTIALS
from tests.unit.answers.uses.projects import answer_for, write

OLD = {"pkg/a.py": "from vllm.utils import get_port\n", "run.sh": "vllm serve m --kept\n"}


@pytest.fixture(autouse=True)
def _made_up_history(two_releases: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_vllm_regress.cli.uses.history", lambda: two_releases)


def pyproject(specifier: str) -> dict[str, str]:
    return {
        "pyproject.toml": f'[project]\nname = "x"\ndependencies = ["numpy", "vllm{specifier}"]\n'
    }


@pytest.mark.parametrize(
    ("declaration", "code"),
    [
        ({}, 0),
        (pyproject(">=1.0,<2"), 0),
        (pyproject(">=1.0"), 1),
        ({"requirements-dev.txt": "vllm[audio]>=2 ; python_version > '3'\n"}, 1),
        ({"setup.cfg": "[options]\ninstall_requires =\n  vllm==2.0\n"}, 1),
        ({"Dockerfile": "FROM vllm/vllm-openai:v2.0\n"}, 0),  # about the uses in that file
        ({"Dockerfile": 'FROM vllm/vllm-openai:v2.0\nCMD ["--mode", "a"]\n'}, 1),
        ({"Dockerfile": "FROM vllm/vllm-openai:v2.0\nENV VLLM_OLD=1\n"}, 0),  # only ignored
    ],
)
def test_the_exit_code_is_about_the_declared_range(
    tmp_path: Path, declaration: dict[str, str], code: int
) -> None:
    assert cli.main(["uses", str(write(tmp_path, {**OLD, **declaration}))]) == code


def test_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["uses", str(write(tmp_path, {**OLD, **pyproject(">=1")}))]) == 1
    output = capsys.readouterr().out
    for words in (
        "everything exists in: 1.0 (1 of 2 releases, 1.0 to 2.0)",
        "declared: vllm>=1 (pyproject.toml:3): breaks with 2.0",
        "2.0   pkg/a.py:1  the module vllm.utils has no get_port  vllm.utils.network.get_port  0",
        "missing in the newest release, 2.0:",
        "will be removed:",
        "run.sh:1: --kept: --kept is deprecated and will be removed in v3. Use --better instead.",
    ):
        assert words in output


@pytest.mark.parametrize(
    ("specifier", "state", "known"),
    [
        (">=99", "no known release is in this range", []),
        ("<1", "no known release is in this range", []),
        ("<2", "nothing breaks", ["1.0"]),
    ],
)
def test_a_range_without_a_known_release_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], specifier: str, state: str, known: list[str]
) -> None:
    project = str(write(tmp_path, {**OLD, **pyproject(specifier)}))
    assert cli.main(["uses", project]) == 0
    assert f"declared: vllm{specifier} (pyproject.toml:3): {state}\n" in capsys.readouterr().out
    assert cli.main(["uses", project, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["declared"][0]["releases"] == known


def test_what_is_ignored_does_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = write(tmp_path, {**OLD, **pyproject(">=1")})
    assert cli.main(["uses", str(project), "--ignore", "vllm.utils.get_port"]) == 0
    assert capsys.readouterr().err == ""
    assert cli.main(["uses", str(project), "--ignore", "vllm.utils.get_ports"]) == 1
    errors = capsys.readouterr().err
    assert (
        "note: --ignore 'vllm.utils.get_ports': the project uses nothing of this name. Did you mean vllm.utils.get_port?"
        in errors
    )


def test_json_and_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = str(write(tmp_path, {**OLD, **pyproject(">=1")}))
    assert cli.main(["uses", project, "--format", "json"]) == 1
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (report["complete"], report["newest"], report["files"]) == (["1.0"], "2.0", 3)
    assert report["declared"][0]["broken"] == ["2.0"]
    assert report["releases"]["2.0"][0]["file"] == "pkg/a.py"
    assert cli.main(["uses", project, "--format", "markdown"]) == 1
    row = "| 2.0 | ` pkg/a.py:1 ` | ` the module vllm.utils has no get_port ` | ` vllm.utils.network.get_port ` |"
    assert row in capsys.readouterr().out


def test_sarif(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        cli.main(["uses", str(write(tmp_path, {**OLD, **pyproject(">=1")})), "--format", "sarif"])
        == 1
    )
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SARIF_ESSENTIALS)
    results = {result["ruleId"]: result for result in document["runs"][0]["results"]}
    assert results["vllm-name"]["level"] == "warning"
    location = results["vllm-name"]["locations"][0]["physicalLocation"]
    assert (location["artifactLocation"]["uri"], location["region"]["startLine"]) == ("pkg/a.py", 1)
    assert results["vllm-deprecated"]["level"] == "note"


def test_one_file_can_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, OLD)
    assert cli.main(["uses", str(tmp_path / "pkg" / "a.py")]) == 0
    assert "1 use of vLLM in 1 file" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["nowhere"], [".", "--format", "html"]])
def test_usage_errors(arguments: list[str]) -> None:
    assert cli.main(["uses", *arguments]) == 2


@pytest.mark.parametrize(
    ("name", "text", "specifiers"),
    [
        (
            "pyproject.toml",
            '[project.optional-dependencies]\nx = ["VLLM >=0.8 , <0.9"]',
            ["<0.9,>=0.8"],
        ),
        ("pyproject.toml", '[dependency-groups]\nx = ["vllm==0.8.5"]', ["==0.8.5"]),
        ("pyproject.toml", '[tool.poetry.dependencies]\nvllm = "^0.8.5"', [">=0.8.5,<0.9"]),
        ("pyproject.toml", '[tool.poetry.dependencies]\nvllm = {version = ">=0.8"}', [">=0.8"]),
        ("pyproject.toml", 'dependencies = ["vllm-ascend==1", "vllm"]', []),
        ("setup.py", "setup(install_requires=['vllm<=0.9'])", ["<=0.9"]),
        ("setup.cfg", "[options]\ninstall_requires = vllm<=0.9\n", ["<=0.9"]),
        ("setup.cfg", "nonsense [\n  vllm>=0.8 # newest\n", [">=0.8"]),
        ("deps/requirements/gpu.txt", "vllm>=0.8 \\\n  --hash=sha256:1\n", [">=0.8"]),
        ("notes.txt", "vllm==0.8", []),
    ],
)
def test_declared_ranges(name: str, text: str, specifiers: list[str]) -> None:
    assert [declared.specifier for declared in declared_in(text, name)] == specifiers


@pytest.mark.parametrize(
    ("name", "text"),
    [("pyproject.toml", "vllm [\n"), ("setup.py", "vllm(")],
)
def test_a_file_with_ranges_that_cannot_be_parsed_is_noted(
    tmp_path: Path, two_releases: History, name: str, text: str
) -> None:
    with pytest.raises(
        ValueError, match=r"line|never closed|sections|TOML|expected|Expected|Invalid"
    ):
        declared_in(text, name)
    (note,) = answer_for(tmp_path, two_releases, {name: text}).project.notes
    assert note.startswith(f"left out: {name}: cannot be parsed")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requirements.txt", "vllm=0.8\n"),
        ("pyproject.toml", '[project]\ndependencies = [\n "vllm=0.8"\n]\n'),
    ],
)
def test_a_requirement_with_one_equals_sign_is_noted(
    tmp_path: Path, two_releases: History, name: str, text: str
) -> None:
    (note,) = answer_for(tmp_path, two_releases, {name: text}).project.notes
    assert (
        "vllm=0.8' is not a valid requirement, so that the range of vllm in it is not known" in note
    )


def test_a_folder_without_files_is_noted(tmp_path: Path, two_releases: History) -> None:
    (note,) = answer_for(tmp_path, two_releases, {}).project.notes
    assert note.startswith("nothing to read")


def test_hostile_files_are_left_out_and_nothing_leaves_the_tree(
    tmp_path: Path, two_releases: History
) -> None:
    outside = tmp_path / "outside.py"
    outside.write_text("from vllm.utils import get_port")
    project = tmp_path / "project"
    files = {
        "deep.py": "import vllm\nx = " + "(" * 5000 + ")" * 5000,
        "chain.py": "import vllm\n" + "if a: ...\n" + "elif a: ...\n" * 5000,
        "long.py": "import vllm\nx = " + "+".join(["vllm.a"] * 20_000),
        "path.py": "import vllm as x\n" + "x = x.a()\n" * 20_000,
        "braces.yaml": "run: vllm serve " + "{{" * 40_000,
        "null.py": "import vllm\0",
        "large.py": "#vllm" + " " * MAX_FILE,
        "n.ipynb": '{"vllm": ' + "[" * 100_000,
        "m.ipynb": '{"cells": [{"cell_type": "code", "source": 3}, 4], "vllm": 1}',
        "pyproject.toml": "vllm = " + "[" * 50_000,
        "line.sh": "vllm serve " + "--kept " * 200_000,
        "block.yaml": "vllm serve:\n" + " - vllm serve\n" * 5_000,
    }
    write(project, files)
    (project / "link.py").symlink_to(outside)
    (project / "folder").symlink_to(tmp_path)
    (project / "pipe.py").unlink(missing_ok=True)
    result = answer_for(project, two_releases, {})
    assert result.problems["2.0"] == ()
    assert len(result.project.notes) >= 5


def test_names_cannot_control_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, {"\x1b[31mred\n::error::x.py": "from vllm.utils import get_port\n"})
    assert cli.main(["uses", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert "\n::error" not in output
    assert cli.main(["uses", str(tmp_path), "--format", "sarif"]) == 0
    assert cli.main(["uses", str(tmp_path), "--format", "markdown"]) == 0
