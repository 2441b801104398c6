from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from pytest_vllm_regress.util.files import remove_tree


def nest(folder: Path, depth: int) -> None:
    """Create folders in folders. Their path may be longer than the system allows."""
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=descriptor)
        inner = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=descriptor))
    os.close(descriptor)


def test_a_folder_nested_deeper_than_python_recurses_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    nest(folder, 3 * sys.getrecursionlimit())
    assert remove_tree(folder)
    assert not folder.exists()


def test_what_a_link_points_at_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept"
    (kept / "inner").mkdir(parents=True)
    folder = tmp_path / "run"
    (folder / "deep" / "deeper").mkdir(parents=True)
    for place in (folder, folder / "deep", folder / "deep" / "deeper"):
        (place / "link").symlink_to(kept)
    rmtree = shutil.rmtree
    calls: list[Path] = []

    def fail_once(path: Path, ignore_errors: bool) -> None:
        calls.append(path)
        if len(calls) == 1:
            raise RecursionError
        rmtree(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", fail_once)
    assert remove_tree(folder)
    assert (kept / "inner").is_dir()
