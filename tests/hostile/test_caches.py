"""A cache that somebody else can change is refused, from its root to the interpreter of an
environment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_vllm_regress.engines.gpus import compiled
from pytest_vllm_regress.environments import sources
from pytest_vllm_regress.environments.cache import EnvironmentCache, bytecode_folder
from pytest_vllm_regress.environments.install import ensure_sidecar
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.util import paths
from pytest_vllm_regress.util.paths import cache_root, strip_machine_paths, writable_root
from tests.hostile.test_choices import fake
from tests.integration.environments.conftest import RECIPE, Fake

__all__ = ["fake"]

NOBODY = 65534


def give_away(path: Path) -> None:
    if os.getuid():
        pytest.skip("only root can give a file to another user")
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def open_to_all(path: Path) -> None:
    path.chmod(0o777)


def open_to_a_group(path: Path) -> None:
    if os.getuid():
        pytest.skip("only root can give a file to another group")
    os.chown(path, -1, NOBODY)
    path.chmod(0o770)


CHANGES = [give_away, open_to_all, open_to_a_group]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "step",
    [
        "",
        "environments",
        "FOLDER",
        "FOLDER/bin",
        "FOLDER/lib",
        "FOLDER/lib/python3.11/site-packages",
    ],
)
def test_each_step_to_the_interpreter_is_checked(
    step: str, change: Callable[[Path], None], fake: Fake, tmp_path: Path
) -> None:
    python = EnvironmentCache().ensure(RECIPE)
    assert EnvironmentCache().ensure(RECIPE) == python
    path = tmp_path / "cache" / step.replace("FOLDER", f"environments/{python.parent.parent.name}")
    change(path)
    uses: list[Callable[[], object]] = [
        lambda: EnvironmentCache().ensure(RECIPE),
        lambda: EnvironmentCache().built(RECIPE),
    ]
    for use in uses:
        with pytest.raises(UsageError) as error:
            use()
        assert f"{path}: " in str(error.value)
        assert "VLLM_REGRESS_CACHE" in str(error.value)
    assert len(fake.calls("venv")) == 1


@pytest.mark.parametrize("name", ["bin/python", "pyvenv.cfg"])
def test_the_files_that_start_the_interpreter_are_checked(name: str, fake: Fake) -> None:
    python = EnvironmentCache().ensure(RECIPE)
    path = python.parent.parent / name
    if not path.exists():
        path.write_text("home = /usr/bin\n")
    give_away(path)
    with pytest.raises(UsageError, match="another user"):
        EnvironmentCache().built(RECIPE)


def test_an_interpreter_that_everybody_can_write_is_refused(fake: Fake, tmp_path: Path) -> None:
    python = EnvironmentCache().ensure(RECIPE)
    python.unlink()
    python.symlink_to(tmp_path / "python")
    (tmp_path / "python").write_text("#!/bin/sh\n")
    (tmp_path / "python").chmod(0o777)
    with pytest.raises(UsageError, match="write"):
        EnvironmentCache().ensure(RECIPE)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("variable", ["VLLM_REGRESS_CACHE", "XDG_CACHE_HOME", "HOME"])
def test_every_way_to_name_the_cache_is_checked(
    variable: str, change: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("VLLM_REGRESS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "there"))
    (tmp_path / "there").mkdir()
    root = cache_root()
    change(root)
    for use in (cache_root, writable_root, EnvironmentCache):
        with pytest.raises(UsageError, match=f"^{root}: "):
            use()
    assert "CACHE" in strip_machine_paths(f"{root}/x")  # used in messages of errors


@pytest.mark.parametrize("change", [give_away, open_to_all])
def test_the_folder_that_xdg_names_is_checked(
    change: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_REGRESS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    cache_root()
    change(tmp_path / "caches")
    with pytest.raises(UsageError, match="caches: "):
        cache_root()
    (tmp_path / "caches").chmod(0o1777)  # like /tmp: nobody can rename what belongs to another user
    if os.stat(tmp_path / "caches").st_uid == os.getuid():
        cache_root()


def test_a_link_to_a_foreign_folder_is_no_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "mine").symlink_to("theirs")
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "mine"))
    cache_root()
    give_away(tmp_path / "theirs")
    with pytest.raises(UsageError, match="another user"):
        cache_root()


def test_the_folder_in_place_of_a_read_only_cache_is_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_REGRESS_CACHE", "/proc/nowhere")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    writable_root().chmod(0o777)
    with pytest.raises(UsageError, match="is not a folder of this user"):
        writable_root()


@pytest.mark.parametrize("change", CHANGES)
def test_other_code_in_the_cache_is_checked(
    change: Callable[[Path], None], fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = cache_root()
    python = EnvironmentCache().ensure(RECIPE)

    def refused(path: Path, use: Callable[[], object]) -> None:
        path.mkdir(parents=True, exist_ok=True)
        change(path)
        with pytest.raises(UsageError, match=f"^{path}: "):
            use()
        shutil.rmtree(path)

    refused(
        root / "clones",
        lambda: sources._cloned("file:///nowhere"),
    )
    name = next((Path(paths.PACKAGE.parent) / "locks" / "sidecars").glob("*.txt")).stem
    monkeypatch.chdir(paths.PACKAGE.parent)
    refused(root / "sidecars" / f"{name}-python3.11", lambda: ensure_sidecar(name, python))

    def hold() -> None:
        with compiled.hold(compiled.folder_for("1.0")):
            pass

    refused(root / "compiled" / "vllm-1.0", hold)
    archive = tmp_path / "project.zip"
    archive.write_bytes(b"PK\x05\x06" + bytes(18))
    unpacked = paths._unpacked(archive)
    paths._unpacked.cache_clear()
    refused(unpacked, lambda: paths._unpacked(archive))
    folder = bytecode_folder(python)
    assert folder is not None
    folder.mkdir()
    change(folder)
    assert bytecode_folder(python) is None


def test_a_build_leaves_no_folder_that_others_can_write(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0)
    try:
        python = EnvironmentCache().ensure(RECIPE)
        assert EnvironmentCache().ensure(RECIPE) == python
    finally:
        os.umask(before)
    open_folders = [
        path
        for path in python.parents[1].rglob("*")
        if not path.is_symlink() and path.stat().st_mode & 0o022
    ]
    assert not [path for path in open_folders if path.is_dir()]


def test_a_cache_of_the_user_or_of_root_is_used(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = EnvironmentCache().ensure(RECIPE)
    if os.getuid() == 0:
        monkeypatch.setattr(os, "getuid", lambda: NOBODY)
        assert EnvironmentCache().built(RECIPE) == python
        for path in (tmp_path / "cache", *(tmp_path / "cache").rglob("*")):
            os.chown(path, NOBODY, -1, follow_symlinks=False)
        assert EnvironmentCache().ensure(RECIPE) == python
