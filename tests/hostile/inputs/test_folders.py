"""Folders nested deeper than Python can recurse are refused with a message wherever the folders of
others are read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_vllm_regress.answers.api_history.store import History
from pytest_vllm_regress.answers.uses.project import read_project
from pytest_vllm_regress.cli import main
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.fuzz.schemas import corpus
from pytest_vllm_regress.util.sizes import disk_usage
from tests.helpers import ROOT

LEVELS, STEP = 1500, 300


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A folder with ``LEVELS`` folders in each other, and a file in the last one."""
    folder = tmp_path / "deep"
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(LEVELS):
        os.mkdir("d", dir_fd=descriptor)
        inner = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(os.open("file.json", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
    os.close(descriptor)
    yield folder
    rest = tmp_path / "rest"
    while folder.is_dir():  # the removal by pytest is recursive
        below = folder.joinpath(*["d"] * STEP)
        if below.is_dir():
            below.rename(rest)
        shutil.rmtree(folder)
        if rest.is_dir():
            rest.rename(folder)


READERS: dict[str, Callable[[Path], object]] = {
    "uses": lambda folder: read_project(folder, History(["0.8.0"])),
    "corpus": lambda folder: list(corpus.read(folder)),
}


@pytest.mark.parametrize("reader", READERS)
def test_folders_nested_too_deeply_are_refused(reader: str, deep: Path) -> None:
    with pytest.raises(UsageError, match="nested more than 100 deep"):
        READERS[reader](deep)


def test_the_size_of_deep_folders_is_counted(deep: Path) -> None:
    (deep / "file").write_bytes(b"x" * 10_000)
    assert disk_usage(deep) >= 10_000


def test_deep_folders_of_a_case_are_refused(
    deep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = tmp_path / "cases" / "vllm-17173"
    shutil.copytree(ROOT / "cases" / "vllm-17173", case)
    (deep / "d").rename(case / "d")
    try:
        assert main(["--cases", str(case.parent), "validate", "--check"]) == 2
        assert "nested more than 100 deep" in capsys.readouterr().err
    finally:
        (case / "d").rename(deep / "d")
