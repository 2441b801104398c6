"""What a session remembers, and what it removes when it is closed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_vllm_regress.engines.processes import process_tree
from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.settings import Settings
from pytest_vllm_regress.errors import BuildError, UsageError
from pytest_vllm_regress.target_site.vllm_regress_target.nanny import SEGMENTS
from pytest_vllm_regress.util.deadline import Deadline
from pytest_vllm_regress.util.rundir import RunDir


@pytest.fixture
def segments() -> Iterator[tuple[Path, Path]]:
    """Two files in shared memory."""
    segments = tuple(
        Path(f"/dev/shm/vr-test-{os.getpid()}-{which}") for which in ("noted", "renewed")
    )
    for path in segments:
        path.touch()
    yield segments[0], segments[1]
    for path in segments:
        path.unlink(missing_ok=True)


def test_a_build_error_does_not_grow_with_every_test(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(Settings(), lambda phase, seconds: Deadline.after(phase, seconds or 60))

    def resolve(name: str) -> None:
        raise BuildError("no such release")

    monkeypatch.setattr("pytest_vllm_regress.environments.names.resolve", resolve)
    frames = []
    for _ in range(4):
        with pytest.raises(BuildError, match="no such release") as caught:
            session.target("vllm-1.0")
        frames.append(len(caught.traceback))
    assert len(set(frames[1:])) == 1


def test_shared_memory_that_killed_nannies_had_noted_is_removed_and_charged(
    segments: tuple[Path, Path],
) -> None:
    noted, renewed = segments
    session = Session(Settings(), lambda phase, seconds: Deadline.after(phase, seconds or 60))
    folder = session.run.path
    # The second name was noted for a file that no longer exists; the present file of that name
    # belongs to another process.
    (folder / SEGMENTS).write_text(
        f"{noted.stat().st_ino} {noted}\n{renewed.stat().st_ino + 1} {renewed}\n"
    )
    session.close()
    assert not noted.exists()
    assert renewed.exists()
    assert not folder.exists()
    ((user, (left,)),) = session.leftover_reports
    assert user == "the session"
    assert str(noted) in str(left)


def test_a_removal_that_is_cut_short_can_be_finished_by_another_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = RunDir.create()
    about = (run.path / "run.json").read_text()

    def killed(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            run.remove()
    assert (run.path / "run.json").read_text() == about
    run.remove()
    assert not run.path.exists()


def test_after_the_run_directory_was_removed_the_next_test_gets_a_new_one(
    fixed_target: Path, tmp_path: Path
) -> None:
    (tmp_path / "probe.py").write_text("def one():\n    return 1\n")
    lines: list[str] = []
    session = Session(
        Settings(), lambda phase, seconds: Deadline.after(phase, seconds or 60), lines.append
    )
    try:
        target = session.target(str(fixed_target))
        first = session.probe(target)
        removed = session.run
        shutil.rmtree(removed.path)
        with pytest.raises(UsageError, match="was removed while it was in use"):
            session.run.check()
        request = {"file": str(tmp_path / "probe.py"), "function": "one", "arguments": {}}
        second = session.probe(target)
        assert second.request("call", Deadline.after("probe", 60), **request) == 1
        assert not first.alive
        assert process_tree.with_tag(removed.tag) == []
        assert any(str(removed.path) in line for line in lines)
        second.kill()
    finally:
        session.close()
