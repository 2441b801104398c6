"""A run directory exists with its owner file or not at all, even if files appear during a removal
or a creation is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target import limits
from pytest_vllm_regress.util.rundir import PREFIX, Owner, RunDir, State, abandoned_runs


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test its own folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def writing_behind(monkeypatch: pytest.MonkeyPatch, run: RunDir, times: int) -> None:
    """Create files between a removal's listing of the folder and its ``rmdir``, as an ending
    process may."""
    real, names = os.rmdir, iter(range(times))

    def rmdir(path: str | Path, *, dir_fd: int | None = None) -> None:
        if Path(path) == run.path and (name := next(names, None)) is not None:
            (run.path / f"late-{name}").touch()
        real(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", rmdir)


def test_files_written_during_a_removal_are_removed_too(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir.create()
    writing_behind(monkeypatch, run, 2)
    run.remove()
    assert list(place.iterdir()) == []


def test_a_folder_that_cannot_be_removed_keeps_its_owner_file(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir.create()
    with monkeypatch.context() as patched:
        writing_behind(patched, run, 100)
        run.remove()
    monkeypatch.setattr(Owner, "state", lambda owner: State.GONE)
    (abandoned,) = abandoned_runs()
    assert abandoned.run == run
    abandoned.run.remove()
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("ending", [KeyboardInterrupt, OSError])
def test_a_creation_that_is_cut_short_leaves_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch, ending: type[BaseException]
) -> None:
    def cut_short(path: Path, *given: object, **named: object) -> None:
        raise ending

    monkeypatch.setattr(Path, "write_text", cut_short)
    with pytest.raises(ending):
        RunDir.create()
    assert not list(place.glob(f"{PREFIX}*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("module", "function"), [("tempfile", "mkdtemp"), ("os", "unlink")])
def test_a_process_killed_by_a_signal_leaves_only_folders_with_a_record(
    place: Path, number: signal.Signals, module: str, function: str
) -> None:
    """The signal arrives when the folder was just made, or when its record was just removed."""
    program = f"""
import os, signal, tempfile
from pytest_vllm_regress.util.rundir import RunDir
signal.signal({number}, signal.SIG_DFL)
tempfile.gettempdir()  # tries the folder with a file, which it unlinks
real = {module}.{function}
def and_signal(*args, **options):
    result = real(*args, **options)
    os.kill(os.getpid(), {number})
    return result
{module}.{function} = and_signal
RunDir.create().remove()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(place)}, check=False
    )
    assert done.returncode == -number
    remaining = [run.run.path for run in abandoned_runs()]
    assert list(place.glob(f"{PREFIX}*")) == remaining
    assert len(remaining) == (function == "mkdtemp")


def test_a_removed_log_is_not_created_again(place: Path) -> None:
    limits.trim(str(place / "log"), 1)
    assert not (place / "log").exists()
