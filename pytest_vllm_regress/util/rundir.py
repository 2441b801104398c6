"""The run directory: a short path in the temporary directory that holds everything a run writes and
records who owns the run.

Scratch folders, which builds of environments use, are run directories, too, so that one mechanism
finds the remains of killed processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..errors import UsageError
from ..target_site.vllm_regress_target.nanny import SEGMENTS
from .documents import load_json
from .files import peek, remove_tree
from .owner import Owner, State
from .signals import blocked

PREFIX = "vr-"
_OWNER = "run.json"
_SHARED_MEMORY = "/dev/shm"
_MAX_OWNER = 64 * 1024
_MAX_SEGMENTS = 1024 * 1024
_ROUNDS = 5
"""Attempts to remove a directory: a process that was killed while it wrote may add a file after the
first."""


@dataclasses.dataclass(frozen=True)
class RunDir:
    """A run directory with logs/ and ray/ (Ray's session directory, whose socket paths must be
    short). ``tag`` marks every process of the run."""

    path: Path
    tag: str

    @classmethod
    def create(cls, controller: Owner | None = None) -> RunDir:
        """Create the directory of a run that this process owns.

        ``controller`` is the process that this one works for, as an xdist worker does. The run is
        abandoned when either has ended.
        """
        owner = Owner.me()
        parent = dataclasses.asdict(controller) if controller else None
        path = None
        try:
            # Nobody can tell that a folder without a record is ours: a signal that ends this
            # process waits until the record is written.
            with blocked():
                path = Path(tempfile.mkdtemp(prefix=PREFIX))
                run = cls(path, owner.tag(path.name, secrets.token_hex(4)))
                (path / _OWNER).write_text(
                    json.dumps({**dataclasses.asdict(owner), "tag": run.tag, "controller": parent})
                )
            run.logs.mkdir()
        except BaseException:  # a full disk or an interrupt
            if path is not None:
                remove_tree(path)
            raise
        return run

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def ray(self) -> Path:
        return self.path / "ray"

    def check(self) -> None:
        """Raise ``UsageError`` if the directory is gone, even where a process that still writes to
        it has created it again."""
        if not (self.path / _OWNER).exists():
            raise UsageError(
                f"the run directory {self.path} was removed while it was in use, perhaps by a program that cleans {self.path.parent}. "
                "Run again; if it happens again, set TMPDIR to a folder that nothing cleans"
            )

    def segments(self) -> tuple[Path, ...]:
        """Return the shared-memory files that nannies recorded and that still exist.

        Compares inodes, because names are reused.
        """
        segments: dict[Path, None] = {}
        for line in peek(self.path / SEGMENTS, _MAX_SEGMENTS).splitlines():
            inode, _, name = line.partition(" ")
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                if _is_segment(name, inode):
                    segments[Path(name)] = None
        return tuple(segments)

    def remove(self) -> None:
        """Remove the directory.

        The record of the owner is removed last. If the removal is interrupted, or an ending process
        adds a file, the next run finishes it.
        """
        record = self.path / _OWNER
        for _ in range(_ROUNDS):
            with contextlib.suppress(OSError):
                if not [
                    path for path in self.path.iterdir() if path != record and not _remove(path)
                ]:
                    content = peek(record, _MAX_OWNER)
                    with blocked():  # as in `create`
                        record.unlink(missing_ok=True)
                        try:
                            self.path.rmdir()
                        except OSError:
                            record.write_text(content)
                        else:
                            return


def _is_segment(name: str, inode: str) -> bool:
    """Return whether ``name`` is this user's regular file with this inode below /dev/shm.

    A path with ``..`` or with a link in it is none.
    """
    if not name.startswith(_SHARED_MEMORY + "/"):
        return False
    status = os.lstat(name)
    inside = os.path.realpath(name) == os.path.realpath(_SHARED_MEMORY) + name.removeprefix(
        _SHARED_MEMORY
    )
    return (
        inside
        and stat.S_ISREG(status.st_mode)
        and str(status.st_ino) == inode
        and status.st_uid == os.getuid()
    )


def _remove(path: Path) -> bool:
    """Remove a file or folder. Return whether it is gone."""
    with contextlib.suppress(OSError):
        remove_tree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return not os.path.lexists(path)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder.

    It is a run directory, so that ``abandoned_runs`` finds it if this process is killed.
    """
    run = RunDir.create()
    try:
        yield run.path
    finally:
        run.remove()


@dataclasses.dataclass(frozen=True)
class AbandonedRun:
    """A run directory whose owner has ended."""

    run: RunDir
    controller_pid: int


def abandoned_runs() -> Iterator[AbandonedRun]:
    """Yield this user's run directories whose owner, or the owner's controller, has provably ended."""
    for path in sorted(Path(tempfile.gettempdir()).glob(PREFIX + "*")):
        with contextlib.suppress(
            OSError, UsageError, ValueError, KeyError, TypeError, AttributeError
        ):
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            record = load_json(path / _OWNER, _MAX_OWNER)
            owners, tag = [Owner.from_json(record)], str(record["tag"])
            if controller := record.get("controller"):
                owners.append(Owner.from_json(controller))
            ended = next((owner for owner in owners if owner.state() is State.GONE), None)
            if tag.startswith(f"{path.name}-") and ended is not None:
                yield AbandonedRun(RunDir(path, tag), ended.pid)
