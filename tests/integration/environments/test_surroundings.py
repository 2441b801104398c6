"""Read-only caches, and folders that cannot be a cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.util.paths import cache_root, writable_root
from tests.helpers import ROOT
from tests.integration.environments.conftest import RECIPE, Fake

READ_ONLY = [
    "unshare",
    "-rm",
    "sh",
    "-c",
    'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"',
]
USE = """
from pytest_vllm_regress.engines.checkpoints.forge import ensure_checkpoint
from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.util.paths import writable_root
from tests.integration.environments.conftest import CPU_RECIPE, RECIPE
cache = EnvironmentCache()
for _ in range(2):
    with cache.lease(RECIPE, progress=print) as python:
        print("leased", python)
print("checkpoint", ensure_checkpoint("text", writable_root() / "checkpoints"))
try:
    cache.ensure(CPU_RECIPE)
except Exception as error:
    print("refused", error)
"""


def test_a_read_only_cache_is_used(fake: Fake, cache: EnvironmentCache, tmp_path: Path) -> None:
    """As in a container image with environments: on a read-only file system."""
    built = cache.ensure(RECIPE)
    (tmp_path / "temporary").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    command = [*READ_ONLY, str(tmp_path / "cache"), sys.executable, "-c", USE]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if "unshare" in done.stderr:
        pytest.skip(f"no file system can be made read-only here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines.count(f"leased {built}") == 2
    assert done.stdout.count("cannot be written: its environments are used") == 1
    place = tmp_path / "temporary" / f"vllm-regress-{os.getuid()}"
    assert f"checkpoint {place}" in done.stdout
    assert "refused" in lines[-1]
    assert "Set VLLM_REGRESS_CACHE" in lines[-1]


def test_the_fallback_folder_must_belong_to_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_REGRESS_CACHE", "/proc/nowhere")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    other = tmp_path / f"vllm-regress-{os.getuid()}"
    assert writable_root() == other
    other.rmdir()
    other.symlink_to("/etc")
    with pytest.raises(UsageError, match="is not a folder of this user"):
        writable_root()


def test_without_a_home_directory_nothing_is_built(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("VLLM_REGRESS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    with pytest.raises(UsageError, match=r"the home directory .*nobody does not exist"):
        EnvironmentCache().ensure(RECIPE)
    assert not (tmp_path / "nobody").exists()
    assert not fake.calls("venv")
    (
        tmp_path / "somebody"
    ).mkdir()  # another one: whether a home exists is decided once per process
    monkeypatch.setenv("HOME", str(tmp_path / "somebody"))
    assert EnvironmentCache().ensure(RECIPE).is_relative_to(cache_root())
