"""What is said against a case without running it."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases import lint, proof
from pytest_vllm_regress.cases.model import Case, find_cases
from pytest_vllm_regress.errors import Kind, Part
from tests.helpers import ROOT

CASES = find_cases(ROOT / "cases")
BY_ID = {case.id: case for case in CASES}
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)


def with_pattern(case: Case, pattern: str) -> Case:
    return dataclasses.replace(case, symptom=dataclasses.replace(case.symptom, pattern=pattern))


@every_case
@pytest.mark.parametrize("pattern", [".*", ".", "", "[a-z]+", "a|"])
def test_a_pattern_made_wide_is_noticed(case: Case, pattern: str) -> None:
    (line,) = lint.warnings(with_pattern(case, pattern), CASES)
    assert line.startswith(f"{case.path}: symptom.pattern matches ") and "says nothing about this failure" in line


@every_case
def test_nothing_is_said_against_the_cases_of_the_project(case: Case) -> None:
    assert lint.contradictions(case, proof.read(case.directory / proof.FILE)) == []
    assert [line for line in lint.warnings(case, CASES) if "looks like, too" not in line] == []


def test_a_pattern_that_fits_another_case_is_told() -> None:
    mine = with_pattern(BY_ID["vllm-17173"], r"expected \d+")
    (line,) = lint.warnings(mine, [mine, dataclasses.replace(mine, id="another")])
    assert "matches what another looks like, too ('expected 0')" in line


def test_a_case_of_another_kind_is_no_rival() -> None:
    mine = BY_ID["vllm-17173"]
    symptom = dataclasses.replace(mine.symptom, kinds=(Kind.HANG,))
    assert lint.warnings(mine, [dataclasses.replace(mine, id="another", symptom=symptom)]) == []


@pytest.mark.parametrize(
    ("kind", "pattern", "part"),
    [
        (Kind.HANG, "Application startup complete", "log"),
        (Kind.ENGINE_DEATH, "prefix", "log"),
        (Kind.CRASH, "Received request", "log"),
        (Kind.HANG, r"MainThread", "stacks"),
    ],
)
def test_a_pattern_that_sound_runs_match_is_told(kind: Kind, pattern: str, part: str) -> None:
    symptom = dataclasses.replace(BY_ID["vllm-7557"].symptom, kinds=(kind,), pattern=pattern, where=())
    found = lint.warnings(dataclasses.replace(BY_ID["vllm-7557"], symptom=symptom), ())
    assert any(f"symptom.pattern matches the {part} of a sound run of vllm-" in line for line in found)
    elsewhere = dataclasses.replace(symptom, where=(Part.ASSERTION,))
    assert lint.warnings(dataclasses.replace(BY_ID["vllm-7557"], symptom=elsewhere), ()) == []


def test_what_sound_runs_wrote_is_small_and_of_no_machine() -> None:
    files = sorted(lint.SOUND.iterdir())
    versions = {file.stem for file in files}
    assert {file.name for file in files} == {f"{name}.{part}" for name in versions for part in ("log", "stacks")}
    assert {"vllm-0.7.3", "vllm-0.8.5", "vllm-0.11.2", "vllm-0.33.0"} <= versions
    assert sum(file.stat().st_size for file in files) < 150_000
    for file in files:
        text = file.read_text()
        assert "/home/" not in text and "/root/" not in text and "CACHE/" in text
    assert all("Application startup complete" in file.read_text() for file in files if file.suffix == ".log")


def test_a_pattern_that_says_nothing_is_never_proven(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(ROOT / "cases" / "vllm-57550", tmp_path / "vllm-57550")
    path = tmp_path / "vllm-57550" / "case.toml"
    path.write_text(path.read_text().replace("expected .* to be refused", ".*"))
    for arguments in (["vllm-57550"], ["--check"]):
        assert cli.main(["--cases", str(tmp_path), "validate", *arguments]) == 1
        told = capsys.readouterr().out
        assert "it says nothing about this failure" in told and "[1/1]" not in told  # and nothing was run
