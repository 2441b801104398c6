"""Run directories, and the processes that own them.

The run directory is a short path in the temporary directory that holds everything a run writes and
records who owns the run.

Scratch folders, which builds of environments use, are run directories, too, so that one mechanism
finds the remains of killed processes.
"""

from __future__ import annotations

import contextlib
import enum
import os
import re
import secrets
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from . import codec
from .files import peek, remove_tree
from .signals import blocked

PREFIX = "vr-"
_OWNER = "run.json"
_SHARED_MEMORY = "/dev/shm"
_MAX_OWNER = 64 * 1024
_MAX_SEGMENTS = 1024 * 1024
_ROUNDS = 5
"""Attempts to remove a directory: a process that was killed while it wrote may add a file after the
first."""


_IN_TAG = re.compile(r"-(\d{1,10})\.(\d{1,20})\.(\d{1,20})-[0-9a-f]+$")


class State(enum.Enum):
    """Whether an owner is alive, as far as can be proven."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "cannot be seen from here"


@dataclass(frozen=True)
class Owner:
    """A process.

    ``ticks`` is its start time in kernel clock ticks (never set back), ``namespace`` the pid
    namespace of ``pid``.
    """

    pid: int
    ticks: int
    namespace: int
    boot: str
    host: str

    @classmethod
    def me(cls) -> Owner:
        """Return the current process."""
        pid = os.getpid()
        return cls(pid, start_ticks(pid) or 0, _namespace(pid), _boot_id(), socket.gethostname())

    @classmethod
    def from_tag(cls, tag: str) -> Owner | None:
        """Return the owner named in the tag of a run; None for any other tag.

        Assumes this boot and machine, so it is only for the tags of running processes.
        """
        match = _IN_TAG.search(tag)
        return (
            cls(int(match[1]), int(match[2]), int(match[3]), _boot_id(), socket.gethostname())
            if match
            else None
        )

    @property
    def since(self) -> float:
        """Start time in seconds since the epoch, early by at most one clock tick.

        Only valid for a process of this boot.
        """
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return booted + self.ticks / os.sysconf("SC_CLK_TCK")

    def tag(self, run: str, secret: str) -> str:
        """Return a tag for the run that contains this owner."""
        return f"{run}-{self.pid}.{self.ticks}.{self.namespace}-{secret}"

    def state(self) -> State:
        """Return whether the process is alive or gone, or unknown where neither can be proven."""
        if self.boot != _boot_id():  # rebooted, or the directory is shared with another machine
            return State.GONE if self.host == socket.gethostname() else State.UNKNOWN
        if self.namespace != _namespace(
            os.getpid()
        ):  # one of the two is in a container: the pid is meaningless here
            return State.UNKNOWN
        ticks = start_ticks(self.pid)
        if ticks == self.ticks:
            return State.ALIVE
        # In another time namespace the same process has another start time.
        return State.GONE if ticks is None or _same_clock(self.pid) else State.UNKNOWN


def start_ticks(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot; None if it has ended.

    Zombies count as ended.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    return None


def same_namespace(pid: int) -> bool:
    """Return whether the process is in this process's pid namespace."""
    namespace = _namespace(pid)
    return namespace != 0 and namespace == _namespace(os.getpid())


def _namespace(pid: int) -> int:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino
    return 0


def _same_clock(pid: int) -> bool:
    """Return whether the process is in this process's time namespace."""
    with contextlib.suppress(OSError):
        return os.path.samefile(f"/proc/{pid}/ns/time", "/proc/self/ns/time")
    return True  # the kernel has none


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


@dataclass(frozen=True)
class RunRecord:
    """What a run directory says about its run. ``controller``: see ``RunDir.create``."""

    owner: Owner
    tag: str
    controller: Owner | None = None


@dataclass(frozen=True)
class RunDir:
    """A run directory with logs/ and ray/ (Ray's session directory, whose socket paths must be
    short). ``tag`` marks every process of the run."""

    path: Path
    tag: str

    @classmethod
    def create(cls, controller: Owner | None = None, *, secret_bytes: int = 4) -> RunDir:
        """Create the directory of a run that this process owns.

        ``controller`` is the process that this one works for, as an xdist worker does. The run is
        abandoned when either has ended. ``secret_bytes``: random bytes in the tag.
        """
        owner = Owner.me()
        path = None
        try:
            # Nobody can tell that a folder without a record is ours: a signal that ends this
            # process waits until the record is written.
            with blocked():
                path = Path(tempfile.mkdtemp(prefix=PREFIX))
                run = cls(path, owner.tag(path.name, secrets.token_hex(secret_bytes)))
                record = RunRecord(owner, run.tag, controller)
                (path / _OWNER).write_text(codec.to_text(record))
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

    @property
    def exists(self) -> bool:
        """Whether the directory is there. One that a process which still writes to it has created
        again does not count."""
        return (self.path / _OWNER).exists()

    def check(self) -> None:
        """Raise ``UsageError`` if the directory is gone."""
        if not self.exists:
            raise UsageError(
                f"the run directory {self.path} was removed while it was in use, perhaps by a program that cleans {self.path.parent}. "
                "Run again; if it happens again, set TMPDIR to a folder that nothing cleans"
            )

    def segments(self) -> tuple[Path, ...]:
        """Return the shared-memory files that nannies recorded and that still exist.

        Compares inodes, because names are reused.
        """
        from ..target_site.vllm_regress_target.nanny import SEGMENTS  # Linux only

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


@dataclass(frozen=True)
class AbandonedRun:
    """A run directory whose owner has ended."""

    run: RunDir
    controller_pid: int


def abandoned_runs() -> Iterator[AbandonedRun]:
    """Yield this user's run directories whose owner, or the owner's controller, has provably ended."""
    for path in sorted(Path(tempfile.gettempdir()).glob(PREFIX + "*")):
        with contextlib.suppress(OSError, UsageError):
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            record = codec.load(RunRecord, path / _OWNER, _MAX_OWNER, what="the record of a run")
            owners = filter(None, (record.owner, record.controller))
            ended = next((owner for owner in owners if owner.state() is State.GONE), None)
            if record.tag.startswith(f"{path.name}-") and ended is not None:
                yield AbandonedRun(RunDir(path, record.tag), ended.pid)
