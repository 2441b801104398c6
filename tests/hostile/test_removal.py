"""Removing environments races with their use, and with somebody who swaps folders for links: only
the environment is removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.environments import cache as caching
from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.util.files import remove_tree
from pytest_vllm_regress.util.rundir import RunDir
from tests.hostile.test_choices import fake
from tests.integration.environments.conftest import RECIPE, Fake

__all__ = ["fake"]

RMTREE = shutil.rmtree


@pytest.fixture
def precious(tmp_path: Path) -> Iterator[Path]:
    """A folder outside of the cache that has files with the names of an environment's."""
    folder = tmp_path / "precious"
    (folder / "bin").mkdir(parents=True)
    files = [
        folder / name for name in ("vllm-regress.json", "vllm-regress.lease", "bin/python", "data")
    ]
    for file in files:
        file.write_text('{"name": "x", "size": 1}')
    yield folder
    assert all(file.exists() for file in files)


def swap(place: Path, target: Path) -> None:
    if not place.is_symlink():
        place.rename(place.with_name("moved"))
        place.symlink_to(target)


def test_an_environment_cannot_be_leased_while_it_is_removed(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = EnvironmentCache()
    python = cache.ensure(RECIPE)
    tried = []

    def rmtree(path: Path, *args: Any, **options: Any) -> None:
        with open(Path(path) / "vllm-regress.lease", "rb") as lease, pytest.raises(BlockingIOError):
            fcntl.flock(
                lease, fcntl.LOCK_SH | fcntl.LOCK_NB
            )  # as a user of a cache does that it cannot write
        tried.append(path)
        RMTREE(path, *args, **options)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    assert cache.remove(cache.listing()[0])
    assert tried == [python.parent.parent]


def test_a_lease_of_a_removed_environment_is_refused(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other order, in a cache that this user cannot write: found, removed by its owner, then
    leased."""
    cache = EnvironmentCache()
    place = cache.ensure(RECIPE).parent.parent
    flock = fcntl.flock

    def remove_first(descriptor: Any, how: int) -> None:
        (place / "vllm-regress.json").unlink(missing_ok=True)
        flock(descriptor, how)

    monkeypatch.setattr(caching, "can_write", lambda folder: False)
    monkeypatch.setattr(fcntl, "flock", remove_first)
    with pytest.raises(UsageError, match="was removed"), cache.lease(RECIPE):
        pass


def test_an_environment_in_use_stays(fake: Fake) -> None:
    cache = EnvironmentCache()
    cache.ensure(RECIPE)
    listed = cache.listing()[0]  # not in use when it was looked at
    with cache.lease(RECIPE) as python:
        assert not cache.remove(listed)
        assert python.exists()
    assert cache.remove(listed)
    assert not python.exists()


def test_links_in_the_cache_are_no_environments(fake: Fake, precious: Path) -> None:
    cache = EnvironmentCache()
    cache.ensure(RECIPE)
    (cache.root / "link-0123456789").symlink_to(precious)
    (cache.root / "unfinished-0123456789").symlink_to(precious / "bin")
    assert [environment.path.is_symlink() for environment in cache.listing()] == [False]
    assert cache.unfinished() == ()
    assert cache.sweep() == 0


def test_a_folder_swapped_after_the_look_is_not_followed(fake: Fake, precious: Path) -> None:
    cache = EnvironmentCache()
    place = cache.ensure(RECIPE).parent.parent
    listed = cache.listing()[0]
    swap(place, precious)
    assert not cache.remove(listed)


@pytest.mark.parametrize("finished", [True, False])
def test_a_folder_swapped_during_the_removal_is_not_followed(
    finished: bool, fake: Fake, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = EnvironmentCache()
    place = cache.ensure(RECIPE).parent.parent
    listed = cache.listing()[0]
    if not finished:
        (place / "vllm-regress.json").unlink()

    def rmtree(path: Path, *args: Any, **options: Any) -> None:
        swap(place, precious)
        with contextlib.suppress(OSError):
            RMTREE(path, *args, **options)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    assert not (cache.remove(listed) if finished else cache.remove_unfinished(place))


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """A folder with more folders in each other than Python can recurse, with long names: the whole
    path is longer than the kernel allows."""
    folder = tmp_path / "deep"
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d" * 20, dir_fd=descriptor)
        inner = os.open("d" * 20, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
    os.close(descriptor)
    return folder


def test_a_very_deep_folder_is_removed_and_nothing_behind_its_links(
    deep: Path, precious: Path
) -> None:
    (deep / "link").symlink_to(precious)
    (deep / ("d" * 20) / "link").symlink_to(precious)
    assert remove_tree(deep)
    assert not os.path.lexists(deep)


def test_very_deep_folders_of_environments_and_runs_are_removed(
    fake: Fake, deep: Path, precious: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = EnvironmentCache()
    place = cache.ensure(RECIPE).parent.parent
    (deep / ("d" * 20)).rename(place / "lib" / "deep")
    assert cache.remove(cache.listing()[0])
    assert not place.exists()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run = RunDir.create()
    deep.rename(run.logs / "deep")
    run.remove()
    assert not run.path.exists()


def test_a_link_in_place_of_a_folder_is_not_followed(precious: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(precious)
    assert not remove_tree(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
