"""The run directory: one short path below the system's temporary directory that holds all a run writes, and says whose run it is."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..errors import UsageError
from ..target_site.vllm_regress_target.nanny import SEGMENTS
from .documents import load_json
from .files import peek
from .owner import Owner, State

PREFIX = "vr-"
_OWNER = "run.json"
_MAX_OWNER = 64 * 1024
_MAX_SEGMENTS = 1024 * 1024
_ROUNDS = 5
"""Of a removal: what is killed in the middle of a write has written by the second one."""


@dataclasses.dataclass(frozen=True)
class RunDir:
    """``path`` holds logs/ and ray/ (Ray's session directory: socket paths must stay short). ``tag`` marks every process of the run."""

    path: Path
    tag: str

    @classmethod
    def create(cls, controller: Owner | None = None) -> RunDir:
        """A run of this process. ``controller``: the process that this one works for (as an xdist worker does); the run ends with either."""
        owner = Owner.me()
        above = dataclasses.asdict(controller) if controller else None
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        try:
            run = cls(path, owner.tag(path.name, secrets.token_hex(4)))
            (path / _OWNER).write_text(json.dumps({**dataclasses.asdict(owner), "tag": run.tag, "controller": above}))
            (path / "logs").mkdir()
        except BaseException:  # a full disk, an interrupt: without the note nobody knows whose it is
            shutil.rmtree(path, ignore_errors=True)
            raise
        return run

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def ray(self) -> Path:
        return self.path / "ray"

    def segments(self) -> tuple[Path, ...]:
        """Shared-memory files that nannies noted and that are still there: the same files, not others of the same name."""
        found: dict[Path, None] = {}
        for line in peek(self.path / SEGMENTS, _MAX_SEGMENTS).splitlines():
            number, _, name = line.partition(" ")
            with contextlib.suppress(OSError, ValueError):
                status = os.lstat(name)
                if name.startswith("/dev/shm/") and str(status.st_ino) == number and status.st_uid == os.getuid():
                    found[Path(name)] = None
        return tuple(found)

    def remove(self) -> None:
        """Remove it. The note whose it is goes last, and only when all else is gone: when a removal is cut short, or a process that is
        ending writes behind it, the next run finishes it."""
        kept = self.path / _OWNER
        for _ in range(_ROUNDS):
            with contextlib.suppress(OSError):
                if not [each for each in self.path.iterdir() if each != kept and not _remove(each)]:
                    note = peek(kept, _MAX_OWNER)
                    kept.unlink(missing_ok=True)
                    try:
                        self.path.rmdir()
                    except OSError:
                        kept.write_text(note)
                    else:
                        return


def _remove(path: Path) -> bool:
    """Whether the file or folder is gone."""
    with contextlib.suppress(OSError):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() and not path.is_symlink() else path.unlink()
    return not os.path.lexists(path)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for files of the moment; should this process be killed, ``abandoned_runs`` finds it."""
    run = RunDir.create()
    try:
        yield run.path
    finally:
        run.remove()


@dataclasses.dataclass(frozen=True)
class AbandonedRun:
    """A run directory whose controller is gone."""

    run: RunDir
    controller_pid: int


def abandoned_runs() -> Iterator[AbandonedRun]:
    """Run directories of this user whose controller provably no longer lives."""
    for path in sorted(Path(tempfile.gettempdir()).glob(PREFIX + "*")):
        with contextlib.suppress(OSError, UsageError, ValueError, KeyError, TypeError, AttributeError):
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            about = load_json(path / _OWNER, _MAX_OWNER)
            owner, tag = Owner.from_json(about), str(about["tag"])
            owners = [owner, *([Owner.from_json(above)] if (above := about.get("controller")) else [])]
            gone = next((each for each in owners if each.state() is State.GONE), None)
            if tag.startswith(f"{path.name}-") and gone is not None:
                yield AbandonedRun(RunDir(path, tag), gone.pid)
