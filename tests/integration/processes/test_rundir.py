"""A run directory is there with the note whose it is, or not at all: whoever writes behind a removal, whatever cuts a creation short."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target import limits
from pytest_vllm_regress.util.owner import Owner, State
from pytest_vllm_regress.util.rundir import PREFIX, RunDir, abandoned_runs


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Temporary files of the test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def writing_behind(monkeypatch: pytest.MonkeyPatch, run: RunDir, times: int) -> None:
    """As an ending process may: when a removal has looked at the folder, and is about to take it away."""
    real, names = os.rmdir, iter(range(times))

    def rmdir(path: str | Path, *, dir_fd: int | None = None) -> None:
        if Path(path) == run.path and (name := next(names, None)) is not None:
            (run.path / f"late-{name}").touch()
        real(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", rmdir)


def test_what_is_written_behind_a_removal_goes_too(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir.create()
    writing_behind(monkeypatch, run, 2)
    run.remove()
    assert list(place.iterdir()) == []


def test_what_cannot_be_removed_keeps_the_note_whose_it_is(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir.create()
    with monkeypatch.context() as patched:
        writing_behind(patched, run, 100)
        run.remove()
    monkeypatch.setattr(Owner, "state", lambda owner: State.GONE)
    (found,) = abandoned_runs()
    assert found.run == run
    found.run.remove()
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


def test_a_log_that_was_removed_is_not_made_anew(place: Path) -> None:
    limits.trim(str(place / "log"), 1)
    assert not (place / "log").exists()
