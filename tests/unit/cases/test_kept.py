"""Cases that were read before are not parsed again, unless something has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.cases import loading
from pytest_vllm_regress.cases.kept import FEWEST
from pytest_vllm_regress.cases.loading import CASE_FILE, load_valid_cases
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.util.paths import writable_root
from tests.helpers.cases import CaseFile


@pytest.fixture
def cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    for number in range(FEWEST):
        CaseFile(id=f"case-{number}").write(tmp_path / "cases")
    return tmp_path / "cases"


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were parsed."""
    paths: list[Path] = []
    real = loading.load_case

    def load_case(path: Path) -> Case:
        paths.append(path)
        return real(path)

    monkeypatch.setattr(loading, "load_case", load_case)
    return paths


def kept_file() -> Path:
    (file,) = (writable_root() / "cases").iterdir()
    return file


def test_cases_are_parsed_once(cases: Path, parsed: list[Path]) -> None:
    first = load_valid_cases(cases)
    assert len(parsed) == len(first.cases) == FEWEST
    assert load_valid_cases(cases) == first
    assert len(parsed) == FEWEST


def test_what_has_changed_is_parsed_again(cases: Path, parsed: list[Path]) -> None:
    load_valid_cases(cases)
    CaseFile(id="case-0", title="another").write(cases)
    assert load_valid_cases(cases).cases[0].title == "another"
    CaseFile(id="one-more").write(cases)
    assert len(load_valid_cases(cases).cases) == FEWEST + 1
    (cases / "case-0" / CASE_FILE).unlink()
    assert len(load_valid_cases(cases).cases) == FEWEST
    kept_file().write_bytes(b"x")
    assert len(load_valid_cases(cases).cases) == FEWEST
    assert len(parsed) == FEWEST + FEWEST + FEWEST + 1 + FEWEST + FEWEST


def test_problems_are_reported_each_time(cases: Path, parsed: list[Path]) -> None:
    (cases / "case-0" / CASE_FILE).write_text("?")
    for _ in range(2):
        assert len(load_valid_cases(cases).problems) == 1
    assert len(parsed) == 2 * FEWEST
    (cases / "case-0" / CASE_FILE).unlink()
    (cases / "case-0" / CASE_FILE).symlink_to("/dev/zero")
    assert "case-0" in load_valid_cases(cases).problems[0]


def test_a_cache_that_cannot_be_used_stops_nothing(
    cases: Path, parsed: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    for _ in range(2):
        assert len(load_valid_cases(cases).cases) == FEWEST
    assert len(parsed) == 2 * FEWEST
