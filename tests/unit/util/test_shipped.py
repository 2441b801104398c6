"""Project files in the archive of a wheel."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from pytest_vllm_regress.util import paths


def packed(folder: Path, content: str) -> Path:
    """An archive with one case."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / "project.zip", "w") as archive:
        archive.writestr("cases/demo/case.toml", content)
    return folder / "project.zip"


@pytest.fixture(autouse=True)
def new_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    paths._unpacked.cache_clear()
    return tmp_path / "cache"


def test_in_a_checkout_files_are_next_to_the_package() -> None:
    assert paths.shipped("cases") == paths.PACKAGE.parent / "cases"


def test_an_archive_is_unpacked_once_per_content(
    tmp_path: Path, new_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "ARCHIVE", packed(tmp_path / "one", "first"))
    first = paths.shipped("cases/demo/case.toml")
    assert first.read_text() == "first" and first.is_relative_to(new_cache)
    began = first.stat().st_mtime_ns
    monkeypatch.setattr(paths, "ARCHIVE", packed(tmp_path / "two", "second"))
    assert paths.shipped("cases/demo/case.toml").read_text() == "second"
    paths._unpacked.cache_clear()
    monkeypatch.setattr(paths, "ARCHIVE", tmp_path / "one" / "project.zip")
    assert paths.shipped("cases/demo/case.toml") == first and first.stat().st_mtime_ns == began
    assert len(list((new_cache / "project").iterdir())) == 2  # nothing else stays


def test_another_process_may_unpack_first(
    tmp_path: Path, new_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder exists, with the same content, when this process renames its own."""
    archive = packed(tmp_path / "one", "first")
    place = paths._unpacked(archive)
    paths._unpacked.cache_clear()
    looked = iter([False, False])
    monkeypatch.setattr(
        Path, "is_dir", lambda path, is_dir=Path.is_dir: next(looked, None) or is_dir(path)
    )
    assert paths._unpacked(archive) == place
    assert (place / "cases" / "demo" / "case.toml").read_text() == "first"
    assert list((new_cache / "project").iterdir()) == [place]
