"""Where cases and environments are searched, and whose files are trusted."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases.loading import default_cases_dir
from pytest_vllm_regress.engines import ports
from pytest_vllm_regress.environments.recipes import find_file
from pytest_vllm_regress.errors import RegressError, UsageError
from pytest_vllm_regress.util.paths import check_owner, folders_of_project, is_private
from tests.helpers import ROOT

CASE = (ROOT / "cases" / "vllm-16140" / "case.toml").read_text()
NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """Create cases and environments in a folder above the working directory."""
    (tmp_path / "cases" / "evil").mkdir(parents=True)
    (tmp_path / "cases" / "evil" / "case.toml").write_text(CASE)
    (tmp_path / "environments.toml").write_text("nonsense")
    (tmp_path / "project" / "below").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize("mark", ["pyproject.toml", ".git"])
def test_folders_above_the_project_are_not_searched(
    planted: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = planted / "project" / "below"
    (planted / "project" / mark).touch()
    assert folders_of_project(below) == (below, planted / "project")
    monkeypatch.chdir(below)
    assert default_cases_dir() == ROOT / "cases"
    assert find_file() == ROOT / "environments.toml"


def test_outside_of_a_project_only_the_folder_itself_is_searched(
    planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(planted / "project")
    assert default_cases_dir() == ROOT / "cases"
    assert find_file() == ROOT / "environments.toml"
    assert default_cases_dir(planted) == planted / "cases"


@as_root
@pytest.mark.parametrize("file", ["cases", "cases/evil", "cases/evil/case.toml"])
def test_files_of_another_user_are_rejected(
    planted: Path, file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    os.chown(planted / file, NOBODY, -1)
    with pytest.raises(UsageError, match="belongs to another user"):
        default_cases_dir(planted)
    monkeypatch.chdir(planted)
    assert cli.main(["list"]) == 2
    assert cli.main(["--cases", "cases", "list"]) == 0  # naming a directory means trusting it
    capsys.readouterr()


@as_root
def test_environments_of_another_user_are_rejected(
    planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(planted / "environments.toml", NOBODY, -1)
    monkeypatch.chdir(planted)
    with pytest.raises(UsageError, match="belongs to another user"):
        find_file()


def test_the_origin_of_cases_is_reported(
    planted: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (planted / ".git").touch()
    monkeypatch.chdir(planted / "project")
    assert cli.main(["list"]) == 0
    captured = capsys.readouterr()
    assert f"cases: {planted / 'cases'}" in captured.err
    assert "cases:" not in captured.out
    check_owner(planted, "")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the temporary directory and the cache. Return the folder of port locks."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / f"vllm-regress-ports-{os.getuid()}"


def lease() -> None:
    ports.lease_port().release()


def test_port_locks_are_in_a_private_folder(temporary: Path) -> None:
    lease()
    assert stat.S_IMODE(temporary.stat().st_mode) == 0o700 and list(temporary.iterdir())


@pytest.mark.parametrize("trap", ["link", "open", "file", pytest.param("theirs", marks=as_root)])
def test_a_port_lock_folder_of_another_user_is_not_used(temporary: Path, trap: str) -> None:
    elsewhere = temporary.with_name("elsewhere")
    elsewhere.mkdir(mode=0o700)
    if trap == "link":
        temporary.symlink_to(elsewhere)
    elif trap == "file":
        temporary.touch()
    else:
        temporary.mkdir()
        temporary.chmod(0o777 if trap == "open" else 0o700)
        if trap == "theirs":
            os.chown(temporary, NOBODY, -1)
    assert not is_private(temporary)
    lease()
    assert not list(elsewhere.iterdir())
    assert trap == "file" or not list(temporary.iterdir())
    assert list((temporary.with_name("cache") / "ports").iterdir())


def test_a_lock_that_is_a_link_is_rejected_with_a_message(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary.mkdir(mode=0o700)
    victim = temporary.with_name("victim")
    victim.write_text("untouched")
    monkeypatch.setattr(ports, "_candidates", lambda: iter([ports.FIRST]))
    (temporary / f"{ports.FIRST}.lock").symlink_to(victim)
    with pytest.raises(RegressError, match=r"cannot be locked.*is a link"):
        lease()
    assert victim.read_text() == "untouched"
