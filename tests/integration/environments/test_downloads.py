"""Downloads are estimated before a build, and confirmed on a terminal."""

from __future__ import annotations

import dataclasses
import io
import platform
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from pytest_vllm_regress.cli import context, main
from pytest_vllm_regress.engines.agents import Agents
from pytest_vllm_regress.engines.settings import Limits
from pytest_vllm_regress.environments import uv
from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.downloads import downloads
from pytest_vllm_regress.environments.names import resolve
from pytest_vllm_regress.errors import BuildError, BuildFailure
from tests.integration.environments.conftest import Fake

VLLM = f"vllm-0.9.2-cp38-abi3-manylinux1_{platform.machine()}.whl"
PYLOCK = """
[[packages]]
name = "vllm"
version = "0.9.2"
wheels = [
  {{ url = "https://example.org/{vllm}", {size}hashes = {{ sha256 = "aa" }} }},
  {{ url = "https://example.org/vllm-0.9.2-cp38-abi3-win_amd64.whl", size = 9, hashes = {{ sha256 = "bb" }} }},
]
[[packages]]
name = "tiny"
version = "1"
sdist = {{ url = "https://example.org/tiny-1.tar.gz", {size}hashes = {{ sha256 = "cc" }} }}
"""
SIZE = 1_610_612_736


@pytest.fixture
def index(fake: Fake) -> Fake:
    (fake.folder / "released").write_text("2025-07-08")
    (fake.folder / "pylock").write_text(PYLOCK.format(vllm=VLLM, size=f"size = {SIZE}, "))
    return fake


def test_files_that_environments_share_count_once(index: Fake, cache: EnvironmentCache) -> None:
    estimate = downloads(["vllm-0.9.2", "vllm-0.8.4", sys.executable], cache)
    assert estimate is not None
    assert estimate.size == 2 * SIZE
    assert str(estimate).startswith(
        "to be built first: vllm-0.9.2, vllm-0.8.4: downloads of at most 3.0 GiB"
    )
    assert estimate.free > 0
    assert not index.calls("install")


def test_what_may_not_fit_on_the_disk_is_said(index: Fake, cache: EnvironmentCache) -> None:
    estimate = downloads(["vllm-0.9.2"], cache)
    assert estimate is not None
    fits = dataclasses.replace(estimate, free=2 * estimate.size)
    assert "may not fit" not in str(fits)
    assert "may not fit: name fewer environments" in str(
        dataclasses.replace(fits, free=fits.free - 1)
    )


def test_built_environments_need_no_download(index: Fake, cache: EnvironmentCache) -> None:
    cache.ensure(resolve("vllm-0.9.2"))
    assert downloads(["vllm-0.9.2", sys.executable], cache) is None


def test_an_index_without_sizes_or_unreachable(index: Fake, cache: EnvironmentCache) -> None:
    (index.folder / "pylock").write_text(PYLOCK.format(vllm=VLLM, size=""))
    assert "how much is unknown (the package index gave no sizes)" in str(
        downloads(["vllm-0.9.2"], cache)
    )
    (index.folder / "pylock").unlink()
    estimate = downloads(["vllm-0.9.2"], cache)
    assert estimate is not None
    assert estimate.unknown == ("vllm-0.9.2",)


@pytest.mark.parametrize(
    ("terminal", "options", "answer", "runs"),
    [
        (True, [], "n\n", False),
        (True, [], "\n", True),
        (True, ["--yes"], "n\n", True),
        (False, [], "n\n", True),
    ],
)
@pytest.mark.parametrize("command", ["run", "matrix"])
def test_the_command_asks_first(
    index: Fake,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    terminal: bool,
    options: list[str],
    answer: str,
    runs: bool,
    command: str,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    monkeypatch.setattr(context, "on_a_terminal", lambda: terminal)
    index.mode("network")  # a build is tried, and fails: nothing is to be run here
    status = main([command, "vllm-17173", "--env", "vllm-0.9.2", *options])
    output = capsys.readouterr().out
    assert "downloads of at most 3.0 GiB" in output
    assert status == (3 if runs else context.INTERRUPTED)
    assert bool(index.calls("venv")) is runs


def test_a_test_session_says_what_it_downloads(index: Fake) -> None:
    said: list[str] = []
    agents = Agents(Mock(), Mock(), Limits(), Mock(), said.append)
    index.mode("network")
    with pytest.raises(BuildError):
        agents.interpreter("vllm-0.9.2")
    assert "vllm-0.9.2: downloads of at most 3.0 GiB" in said[0]


@pytest.fixture
def absent_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory that does not exist, and no variable that names a cache."""
    home = tmp_path / "absent"
    monkeypatch.setenv("HOME", str(home))
    for name in ("VLLM_REGRESS_CACHE", "XDG_CACHE_HOME", "UV_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.mark.parametrize(
    "command",
    [
        ("run", "vllm-17173", "--env", "vllm-0.9.2"),
        ("matrix", "vllm-17173", "--env", "vllm-0.9.2"),
        ("validate", "vllm-17173"),
        ("bisect", "vllm-17173"),
        ("survey", "conformance", "--env", "vllm-0.9.2", "--fresh"),
        ("env", "build", "vllm-0.9.2"),
    ],
    ids=lambda command: command[0],
)
def test_without_a_home_directory_nothing_is_created(
    command: tuple[str, ...], index: Fake, absent_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main([*command])
    output = "".join(capsys.readouterr())
    assert status == context.USAGE, output
    assert f"the home directory {absent_home} does not exist (HOME)" in output
    assert not index.calls("venv")
    assert not [words for words in index.calls("compile") if "pylock.toml" in words]  # sizes
    assert not (
        absent_home / ".cache"
    ).exists()  # pip asks rustc for its version, and rustup creates its own folder


@pytest.mark.parametrize("cache_named", [True, False])
def test_uv_creates_no_home_directory(
    cache_named: bool,
    index: Fake,
    absent_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """uv would keep its downloads there."""
    if cache_named:
        monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "named"))
    uv.run(["freeze", "freeze"], doing="x")
    (call,) = index.noted()
    for name in ("UV_CACHE_DIR", "UV_PYTHON_INSTALL_DIR"):
        assert not Path(call["env"][name]).is_relative_to(absent_home)
        assert Path(call["env"][name]).is_relative_to(tmp_path / "named") is cache_named
    monkeypatch.setenv("UV_CACHE_DIR", "/given")
    uv.run(["freeze", "freeze"], doing="x")
    assert index.noted()[-1]["env"]["UV_CACHE_DIR"] == "/given"


@pytest.mark.parametrize("version", ["0.8.99", "0.10.7"])
@pytest.mark.parametrize("command", ["run", "matrix"])
def test_a_release_that_does_not_exist_is_named_with_its_neighbours(
    command: str, version: str, index: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "vllm-17173", "--env", f"vllm-{version}"]) == context.USAGE
    assert f"vllm has no release {version}; close to it: " in "".join(capsys.readouterr())
    assert not index.calls("venv")


@pytest.mark.parametrize(
    "message", ["error: Network unreachable", "error: DNS Error", "error: Connection Refused"]
)
def test_an_index_that_cannot_be_reached_is_recognized_in_any_case(message: str) -> None:
    assert uv.build_error("x", message, 2).failure is BuildFailure.INDEX_UNREACHABLE
