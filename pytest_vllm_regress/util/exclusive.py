"""What one process at a time may use: a journal, a cache that is counted."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ..errors import UsageError

_TRIES = 100
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class Exclusive:
    """A lock beside ``path``, with the pid of the process that has it in another file.

    ``what`` names the thing in messages. The kernel frees the lock when its process ends.
    """

    def __init__(self, path: Path, what: str) -> None:
        self._what = f"{path}: {what}"
        self._file = path.with_name(f".{path.name}.lock")
        self._holder = path.with_name(f".{path.name}.pid")
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Raises ``UsageError`` that names the process, if another one has the lock."""
        if not self._acquired():
            raise UsageError(f"{self._what}: in use by {self._other()}")
        with contextlib.suppress(OSError):  # a full disk: only the message needs it
            self._holder.write_text(f"{os.getpid()}\n")

    def release(self) -> None:
        """Let other processes have it, and remove both files."""
        if self._descriptor is not None:
            self._holder.unlink(missing_ok=True)
            # Before anybody else can have it, and only here: some versions of filelock remove the
            # file once more, which may be the next process's by then.
            self._file.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self.release()  # as when the process ends: nobody can use it any more

    def _acquired(self) -> bool:
        """Lock the file, and return False if another process holds the lock. Retry if the previous
        holder has removed the file or the folder in the meantime."""
        for _ in range(_TRIES):
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                self._file.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(self._file, _FLAGS, 0o600)
                if not _locked(descriptor):
                    os.close(descriptor)
                    return False
                if os.fstat(descriptor).st_nlink:
                    self._descriptor = descriptor
                    return True
                os.close(descriptor)
        return False

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


def _locked(descriptor: int) -> bool:
    """Lock a file. Return False if another process has it."""
    import fcntl  # Linux only

    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
