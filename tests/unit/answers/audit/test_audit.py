"""The command: text, JSON, SARIF, exit codes."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.answers.audit.audit import audit as audit_inventory
from pytest_vllm_regress.answers.audit.audit import to_sarif
from pytest_vllm_regress.answers.audit.package_lists import MAX_BYTES, parse_list
from tests.helpers.cases import project_cases
from tests.unit.answers.audit.conftest import Install
from tests.unit.answers.audit.test_matching import CASE

SARIF_ESSENTIALS = {
    "type": "object",
    "required": ["version", "runs", "$schema"],
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {"type": "array", "minItems": 1, "items": {
            "required": ["tool", "results"],
            "properties": {
                "tool": {"required": ["driver"], "properties": {"driver": {
                    "required": ["name", "version", "rules"],
                    "properties": {"informationUri": {"format": "uri"}, "rules": {"items": {
                        "required": ["id", "shortDescription", "help"],
                        "properties": {
                            "shortDescription": {"required": ["text"]},
                            "help": {"required": ["text"]},
                            "defaultConfiguration": {"properties": {"level": {"enum": ["none", "note", "warning", "error"]}}},
                        },
                    }}},
                }}},
                "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                "results": {"items": {
                    "required": ["ruleId", "ruleIndex", "message", "locations"],
                    "properties": {
                        "level": {"enum": ["none", "note", "warning", "error"]},
                        "message": {"required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}},
                        "locations": {"minItems": 1, "items": {"required": ["physicalLocation"], "properties": {"physicalLocation": {
                            "required": ["artifactLocation", "region"],
                            "properties": {"region": {"properties": {"startLine": {"type": "integer", "minimum": 1}}}},
                        }}}},
                        "partialFingerprints": {"additionalProperties": {"type": "string"}},
                    },
                }},
            },
        }},
    },
}  # fmt: skip


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    return CASE.write(tmp_path / "cases").directory.parent


@pytest.fixture
def affected(tmp_path: Path) -> Path:
    path = tmp_path / "with space.txt"
    path.write_text("# pins\nray==2.43.0\nvllm==0.8.4\n")
    return path


@pytest.fixture
def fine(tmp_path: Path) -> Path:
    path = tmp_path / "fine.txt"
    path.write_text("vllm==0.8.5\n")
    return path


def audit(cases: Path, *arguments: object) -> int:
    return cli.main(["--cases", str(cases), "audit", *map(str, arguments)])


def test_text(cases: Path, affected: Path, fine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(cases, affected, "--verbose") == 1
    output = capsys.readouterr().out
    for words in (
        "demo: it breaks",
        "exception (start or ready)",
        "boom",
        "vllm 0.8.4 is in",
        "v0: only V1",
        "vllm 0.8.5",
        "https://example.org/1",
    ):
        assert words in output
    assert audit(cases, fine) == 0
    assert "no documented failures" in capsys.readouterr().out
    assert audit(cases, fine, affected) == 1


def test_standard_input(
    cases: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for content, code in ((b"vllm==0.8.4\nray==2.43.0", 1), (b"vllm==0.8.5", 0), (b"", 2)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert audit(cases, "-") == code
    assert "standard input: names no package" in capsys.readouterr().err


def test_json(cases: Path, affected: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(cases, affected, "--format", "json") == 1
    report = json.loads(capsys.readouterr().out)
    (target,) = report["targets"]
    assert report["schema"] == 1
    assert target["versions"] == {"ray": "2.43.0", "vllm": "0.8.4"}
    assert target["findings"][0]["first_fixed"] == "vllm 0.8.5"


def test_sarif(cases: Path, affected: Path, fine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from jsonschema import Draft202012Validator

    assert audit(cases, affected, fine, "--format", "sarif") == 1
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    Draft202012Validator(SARIF_ESSENTIALS).validate(document)
    (run,) = document["runs"]
    (result,) = run["results"]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "demo"
    place = result["locations"][0]["physicalLocation"]
    assert Path(unquote(urlparse(place["artifactLocation"]["uri"]).path)) == affected
    assert affected.read_text().splitlines()[place["region"]["startLine"] - 1] == "vllm==0.8.4"
    assert audit(cases, fine, "--format", "sarif") == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["results"] == []


def test_an_image_of_another_version_is_noted(
    cases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for version, noted in (("0.8.4", True), ("0.11.0", False)):
        audit(cases, f"vllm=={version}", "--serve", "docker run vllm/vllm-openai:v0.11.0 --model M")
        assert (
            "the image has vLLM 0.11.0, but the audit is of vllm==0.8.4" in capsys.readouterr().err
        ) is noted


def test_tags_and_links_of_sarif_rules_are_unique() -> None:
    found = audit_inventory(parse_list(b"vllm==0.8.4", "list"), project_cases(), None, ())
    assert any(match.case.family == match.case.symptom.kind for match in found.counted)
    for rule in to_sarif([found])["runs"][0]["tool"]["driver"]["rules"]:
        for texts in (rule["properties"]["tags"], rule["help"]["markdown"].splitlines()[2:]):
            assert len(texts) == len(set(texts)), rule["id"]


def test_ignored_cases_do_not_count_and_are_named(
    cases: Path, affected: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(cases, affected, "--ignore", "demo") == 0
    assert "ignored: demo" in capsys.readouterr().out
    assert audit(cases, affected, "--ignore", "demi") == 2
    assert (
        "no case and no preflight check has this id. Did you mean demo?" in capsys.readouterr().err
    )


def test_bad_input(
    cases: Path, affected: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "large").touch()
    with (tmp_path / "large").open("r+b") as file:
        file.truncate(MAX_BYTES + 1)
    for arguments, words in (
        (["/nowhere"], "no such file"),
        ([tmp_path], "is not an environment"),
        ([tmp_path / "large"], "larger than"),
        ([affected, "--preflight"], "is a list of packages"),
        (["--env", "vllm-0.8.44"], "vllm has no release 0.8.44"),
        (["--releases", "new"], "not a PEP 440 specifier"),
        (["--env", "/nowhere/python"], "No such file"),
        (["vllm>=0.8"], "vllm>=0.8: is neither a file nor an exact version"),
        (["vllm"], "vllm: is neither a file nor an exact version"),
        (["vllm===main"], "vllm===main: 'main' is not a version"),
        (
            ['vllm==0.8.4; python_version<"3"'],
            'vllm==0.8.4; python_version<"3": its marker holds for no Python on Linux',
        ),
        (["ray==2.43.0; sys_platform=='win32'"], "its marker holds for no Python on Linux"),
    ):
        assert audit(cases, *arguments) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "target", ["vllm===0.8.4", "vllm==0.8.4", "vllm == 0.8.4; python_version >= '3.13'"]
)
def test_a_pinned_requirement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    cases = (
        dataclasses.replace(CASE, affected=">=0.8,<0.8.5")
        .write(tmp_path / "cases")
        .directory.parent
    )
    assert audit(cases, target) == 1
    assert f"{target}: vllm 0.8.4" in capsys.readouterr().out


def test_options_that_no_release_has_are_noted(
    cases: Path, affected: Path, fine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(cases, affected, fine, "--serve", "vllm serve M --enforce-eagerr") == 1
    errors = capsys.readouterr().err
    assert (
        errors.count(
            "note: --serve: '--enforce-eagerr' is no option of vllm serve that is known; close to it: --enforce-eager"
        )
        == 1
    )


def test_a_directory_of_packages(
    cases: Path, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("image/site-packages", "vllm", "0.8.4")
    assert audit(cases, install("image/site-packages", "ray", "2.43.0")) == 1


def test_an_interpreter(
    cases: Path, affected_target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataclasses.replace(CASE, affected=">=0.8,<0.8.5").write(cases)
    for target in (affected_target, affected_target.parents[1]):
        assert audit(cases, target) == 1
        assert "vllm 0.8.4" in capsys.readouterr().out
    assert audit(cases, "--env", affected_target, "--preflight", "--format", "json") == 1
    (target,) = json.loads(capsys.readouterr().out)["targets"]
    assert target["preflight"] == []
    assert audit(cases) == 2  # the interpreter that runs the tests
    assert (
        "has no vLLM, so that the audit would prove nothing. Name what has it"
        in capsys.readouterr().err
    )


def test_nothing_heavy_is_imported(affected_target: Path) -> None:
    code = (
        f"import sys; from pytest_vllm_regress import cli; assert cli.main(['audit', '--preflight', {str(affected_target)!r}]) in (0, 1);"
        "heavy = {'vllm', 'torch', 'numpy', 'pytest', 'hypothesis', 'httpx', 'rich'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def test_help_names_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", "--help"]) == 0
    assert re.search(
        r"0 nothing found .*; 1 something found; 2 usage",
        " ".join(capsys.readouterr().out.replace("│", "").split()),
    )
