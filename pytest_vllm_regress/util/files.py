"""Files, written whole or not at all, and read within bounds."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from ..errors import UsageError


def read_bounded(path: Path, limit: int, *, what: str = "a file", error: type[UsageError] = UsageError) -> bytes:
    """All of a regular file of at most ``limit`` bytes; ``what`` it is, for messages.

    Raises ``error`` for a longer one, for what is no file (a pipe would be waited for, a device has no end), and for what cannot be read.
    """
    content = _read(path, limit + 1, error)
    if len(content) > limit:
        raise error(f"{path}: larger than {limit} bytes, which is the limit of {what}")
    return content


def peek(path: Path, limit: int) -> str:
    """The first ``limit`` bytes of a regular file as text; empty where there is none, or it cannot be read."""
    try:
        return _read(path, limit, UsageError).decode("utf-8", errors="replace")
    except UsageError:
        return ""


def write_whole(path: Path, content: str) -> None:
    """Put ``content`` into ``path``, or leave what was there. Who may read it is the umask's to say.

    Raises ``UsageError`` when the place cannot be written.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{secrets.token_hex(8)}.part")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except (OSError, ValueError) as error:
        if temporary is not None:
            with contextlib.suppress(OSError, ValueError):
                temporary.unlink(missing_ok=True)
        raise UsageError(f"{path}: cannot be written: {_why(error)}. Give another place, or make room there") from None


def private_folder(path: Path) -> Path:
    """Make the folder where it is not there yet, readable by its user alone: so are folders above it that have to be made."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    return path


def size_of(path: Path) -> int:
    """Bytes on disk of all files below ``path``; links are not followed."""
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total


def _read(path: Path, limit: int, error: type[UsageError]) -> bytes:
    try:
        with open(path, "rb", opener=_without_waiting) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise error(f"{path}: not a regular file")
            return stream.read(limit)
    except (OSError, ValueError) as problem:
        raise error(f"{path}: cannot be read: {_why(problem)}") from None


def _without_waiting(path: str, flags: int) -> int:
    """Opening a pipe that nobody writes to would wait for ever."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)


def _why(problem: OSError | ValueError) -> str:
    return (problem.strerror if isinstance(problem, OSError) else None) or str(problem)
