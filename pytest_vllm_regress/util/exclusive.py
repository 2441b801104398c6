"""What one process at a time may use: a journal, a cache that is counted."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import filelock

from ..errors import UsageError

_TRIES = 100


class Exclusive:
    """A lock beside ``path``, with the pid of the process that has it in another file.

    ``what`` names the thing in messages. The kernel frees the lock when its process ends.
    """

    def __init__(self, path: Path, what: str) -> None:
        self._what = f"{path}: {what}"
        self._lock = filelock.FileLock(path.with_name(f".{path.name}.lock"), thread_local=False)
        self._holder = path.with_name(f".{path.name}.pid")

    def acquire(self) -> None:
        """Raises ``UsageError`` that names the process, if another one has the lock."""
        try:
            self._acquire()
        except filelock.Timeout:
            raise UsageError(f"{self._what}: in use by {self._other()}") from None
        with contextlib.suppress(OSError):  # a full disk: only the message needs it
            self._holder.write_text(f"{os.getpid()}\n")

    def release(self) -> None:
        """Let other processes have it, and remove both files."""
        if self._lock.is_locked:
            self._holder.unlink(missing_ok=True)
            Path(self._lock.lock_file).unlink(missing_ok=True)  # before anybody else can have it
            self._lock.release()

    def _acquire(self) -> None:
        folder = Path(self._lock.lock_file).parent
        for _ in range(_TRIES):
            folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # who had it is removing the folder
                self._lock.acquire(blocking=False)
                return
        raise filelock.Timeout(self._lock.lock_file)

    def _other(self) -> str:
        import psutil  # only for this message

        try:
            pid = int(self._holder.read_text())
            command = " ".join(psutil.Process(pid).cmdline()[:1])
        except (OSError, ValueError, psutil.Error):
            return "another process. Wait for its end"
        return (
            f"process {pid} ({os.path.basename(command)}). Wait for its end, or end it with `kill {pid}`, "
            "and repeat the command"
        )
