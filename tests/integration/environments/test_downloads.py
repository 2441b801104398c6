"""Before gigabytes are downloaded somebody is told how many, and asked where somebody can answer."""

from __future__ import annotations

import io
import platform
import sys

import pytest

from pytest_vllm_regress.cli import context, main
from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.downloads import downloads
from pytest_vllm_regress.environments.names import resolve
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
    found = downloads(["vllm-0.9.2", "vllm-0.8.4", sys.executable], cache)
    assert found is not None
    assert found.size == 2 * SIZE
    assert str(found).startswith("to be built first: vllm-0.9.2, vllm-0.8.4: downloads of at most 3.0 GiB")
    assert found.free > 0
    assert not index.calls("install")


def test_what_is_built_needs_nothing(index: Fake, cache: EnvironmentCache) -> None:
    cache.ensure(resolve("vllm-0.9.2"))
    assert downloads(["vllm-0.9.2", sys.executable], cache) is None


def test_an_index_that_gives_no_sizes_or_is_away(index: Fake, cache: EnvironmentCache) -> None:
    (index.folder / "pylock").write_text(PYLOCK.format(vllm=VLLM, size=""))
    assert "how much is unknown (the package index gave no sizes)" in str(downloads(["vllm-0.9.2"], cache))
    (index.folder / "pylock").unlink()
    found = downloads(["vllm-0.9.2"], cache)
    assert found is not None
    assert found.unknown == ("vllm-0.9.2",)


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
    said = capsys.readouterr().out
    assert "downloads of at most 3.0 GiB" in said
    assert status == (3 if runs else context.INTERRUPTED)
    assert bool(index.calls("venv")) is runs
