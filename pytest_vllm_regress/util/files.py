"""Write files atomically, read them within a size limit, stay below a folder whose content somebody
else chose, and remove folders."""

from __future__ import annotations

import contextlib
import errno
import functools
import operator
import os
import secrets
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal, cast

from ..errors import DiskFull, UsageError


def _flags(*names: str) -> int:
    """Return flags of ``os.open`` together.

    Windows lacks some, and needs another one for bytes to stay as they are.
    """
    return functools.reduce(
        operator.or_, (getattr(os, f"O_{name}", 0) for name in (*names, "CLOEXEC", "BINARY"))
    )


MAX_DEPTH = 100
"""Limit for folders in folders that somebody else made."""
_FOLDER = _flags("RDONLY", "DIRECTORY")
_LINK_ERRORS = (errno.ELOOP, errno.ENOTDIR)
_HAS_DESCRIPTORS = os.open in os.supports_dir_fd
"""Whether folders are opened part by part. On Windows a path is checked before it is used."""


def expand_home(path: str | Path) -> Path:
    """Return the path with a leading ``~`` or ``~user`` replaced.

    It stays if there is no such user: no such file exists then.
    """
    return Path(os.path.expanduser(path))


def existing_path(text: str) -> Path:
    """Return the path as it stands if it exists, else with a leading ``~`` replaced.

    A project may have a folder ``~``, whose files must not stand for those of the home directory.
    """
    return Path(text) if os.path.lexists(text) else expand_home(text)


def why_missing(path: str | Path) -> str:
    """Return why nothing is found at ``path``: there is no such file, or this user may not look."""
    try:
        os.lstat(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            return error.strerror or str(error)
    except ValueError:  # a null byte
        pass
    return "no such file"


def read_bounded(
    path: Path, limit: int, *, what: str = "a file", error: type[UsageError] = UsageError
) -> bytes:
    """Return the content of a regular file of at most ``limit`` bytes. ``what`` names the kind of
    file in messages.

    Raises ``error`` for a larger file, for anything that is not a regular file (reading a pipe may
    block, a device may never end), and for an unreadable one.
    """
    content = _read(path, limit + 1, error)
    if len(content) > limit:
        raise error(f"{path}: larger than {limit} bytes, which is the limit of {what}")
    return content


def peek(path: Path, limit: int) -> str:
    """Return the first ``limit`` bytes of a regular file as text; empty if it is missing or
    unreadable."""
    try:
        return _read(path, limit, UsageError).decode("utf-8", errors="replace")
    except UsageError:
        return ""


def write_atomically(
    path: Path,
    content: str | bytes,
    *,
    sync: bool = True,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Replace the content of ``path`` atomically. The umask decides who may read it. ``sync``: wait
    until the content is on the disk. ``check``: called at the last moment, may raise.

    Raises ``UsageError`` if it cannot be written.
    """
    temporary: Path | None = None
    _check_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{secrets.token_hex(8)}.part")
        descriptor = os.open(temporary, _flags("WRONLY", "CREAT", "EXCL"), 0o666)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content.encode("utf-8") if isinstance(content, str) else content)
            stream.flush()
            if sync:
                os.fsync(stream.fileno())
        check()
        os.replace(temporary, path)
    except BaseException as error:
        if temporary is not None:
            with contextlib.suppress(OSError, ValueError):
                temporary.unlink(missing_ok=True)
        if isinstance(error, (OSError, ValueError)):
            raise _unwritable(path, error) from None
        raise


def check_writable(path: Path) -> None:
    """Raise ``UsageError`` if ``write_atomically`` could not write a few pages to ``path`` now.

    Creates its folder, and leaves no file.
    """
    _check_name(path)
    if path.is_dir():
        raise _unwritable(path, IsADirectoryError(errno.EISDIR, "Is a directory"))
    probe = path.with_name(f".{secrets.token_hex(8)}.probe")
    try:
        write_atomically(probe, " " * _PROBE_BYTES)
        probe.unlink()
    except UsageError as error:
        raise type(error)(str(error).replace(str(probe), str(path))) from None


_PROBE_BYTES = 16 * 1024


def check_distinct(outputs: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Raise ``UsageError`` if an output is the same file as an input or as another output, through
    links of either kind."""
    taken = {_identity(path): "an input of this command" for path in inputs}
    for path in outputs:
        if use := taken.get(_identity(path)):
            raise UsageError(
                f"{path}: this file is already {use}. Choose another path for the output"
            )
        taken[_identity(path)] = "another output"


def _identity(path: Path) -> object:
    """Return a key that paths of the same file share.

    A file that is missing or cannot be examined is known by its absolute path.
    """
    try:
        status = path.stat()
    except (OSError, ValueError):
        return os.path.abspath(path)
    return status.st_dev, status.st_ino


def _check_name(path: Path) -> None:
    if not path.name:
        raise UsageError("the path of an output file is empty or '.': name a file")
    if path.parts[0] == "-":
        raise UsageError(f"{path}: this output cannot go to standard output: name a file")
    if is_special(path):  # replacing it would remove it
        raise UsageError(f"{path}: not a regular file: name a file")


def is_special(path: Path) -> bool:
    """Return whether ``path`` is a device, a pipe or a socket.

    Every file in /dev counts, because /dev/stdout may lead to a regular file.
    """
    if os.path.isdir(path):
        return False
    return os.path.dirname(os.path.abspath(path)) == "/dev" or (
        os.path.exists(path) and not os.path.isfile(path)
    )


def append_line(path: Path, line: str, *, truncate: bool = False) -> None:
    """Append a line to ``path`` and flush it to the disk. ``truncate``: remove earlier lines.

    Raises ``UsageError`` if it cannot be written, or is a link: a record may lie in a folder that
    somebody else prepared.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_own(path, "wb" if truncate else "ab") as stream:
            stream.write(line.encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None


def open_own(path: Path, mode: Literal["ab", "wb"]) -> BinaryIO:
    """Open a file that is ours to write to. Raises ``OSError`` for a link, and for a pipe without a
    reader."""

    def opener(path: str, flags: int) -> int:
        return os.open(path, flags | _flags("NOFOLLOW", "NONBLOCK", "NOCTTY"), 0o666)

    return cast(BinaryIO, open(path, mode, opener=opener))


def read_lines(path: Path, offset: int, limit: int) -> tuple[list[bytes], int]:
    """Return the complete lines of ``path`` from ``offset`` on, of ``limit`` bytes at most, and the
    offset where the last one ends.

    A line without its newline is still being written and is left out. Without a file there are no
    lines. Raises ``UsageError`` for a file that cannot be read.
    """
    if not path.exists():
        return [], offset
    try:
        with open(path, "rb", opener=open_nonblocking) as stream:
            stream.seek(offset)
            content = stream.read(limit)
    except (OSError, ValueError) as problem:
        raise UsageError(f"{path}: cannot be read: {_reason(problem)}") from None
    complete = content[: content.rfind(b"\n") + 1]
    return complete.split(b"\n")[:-1], offset + len(complete)


def private_folder(path: Path) -> Path:
    """Create the folder and its missing parents, accessible to the user only.

    Existing folders keep their mode.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    return path


def parts_below(path: str) -> tuple[str, ...]:
    """Return the parts of a relative path. Raises ``UsageError`` for an absolute or a very deep
    one, and for a part that leaves its folder or
    names git's."""
    parts = tuple(path.split("/"))
    if len(parts) > MAX_DEPTH:
        raise UsageError(
            f"the path {path[:200]!r} leads through more than {MAX_DEPTH} folders, which is the limit"
        )
    if wrong := [
        part for part in parts if part in ("", ".", "..") or "\0" in part or part.lower() == ".git"
    ]:
        raise UsageError(
            f"the path {path[:200]!r} has the part {wrong[0][:50]!r}: allowed are the names of files and folders, which stay below the tree"
        )
    return parts


def read_below(folder: Path, path: str, limit: int, *, link_text: bool = False) -> bytes | None:
    """Return the content of a regular file below ``folder``; None if there is none: missing, a
    symbolic link, a pipe.

    ``link_text``: return the target of a symbolic link as its content, as git stores it. Raises
    ``UsageError`` for a path that leaves the folder, for a symbolic link in place of a folder on
    the way, and for more than ``limit`` bytes.
    """
    *folders, name = parts_below(path)
    if not _HAS_DESCRIPTORS:
        file = _without_links(folder, folders) / name
        is_file = file.is_file() and not file.is_symlink()
        return read_bounded(file, limit, what="a source file") if is_file else None
    try:
        with _open_folder(folder, folders) as parent:
            try:
                flags = _flags("RDONLY", "NOFOLLOW", "NONBLOCK", "NOCTTY")
                descriptor = os.open(name, flags, dir_fd=parent)
            except OSError as error:
                if error.errno == errno.ELOOP and link_text:
                    return os.fsencode(os.readlink(name, dir_fd=parent))
                raise
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                return None
            with os.fdopen(descriptor, "rb") as stream:
                content = stream.read(limit + 1)
    except OSError as error:
        if error.errno in (*_LINK_ERRORS, errno.ENOENT, errno.ENXIO, errno.ENAMETOOLONG):
            return None
        raise UsageError(f"{folder / path}: cannot be read: {error.strerror}") from None
    if len(content) > limit:
        raise UsageError(
            f"{folder / path}: larger than {limit} bytes, which is the limit of a source file"
        )
    return content


def create_below(folder: Path, path: str, content: bytes) -> None:
    """Create a file below ``folder``, and the folders on the way.

    Raises ``UsageError`` for a path that leaves it, ``OSError`` if it exists.
    """
    *folders, name = parts_below(path)
    with _open_folder(folder, folders, create=True) as parent:
        flags = _flags("WRONLY", "CREAT", "EXCL", "NOFOLLOW")
        with os.fdopen(os.open(name, flags, 0o666, dir_fd=parent), "wb") as stream:
            stream.write(content)


def replace_below(folder: Path, path: str, content: bytes) -> None:
    """Write a file below ``folder``, and the folders on the way. An earlier file, or a link in its
    place, is replaced.

    Raises ``UsageError`` for a path that leaves the folder, for a symbolic link in place of a folder
    on the way, and if the file cannot be written.
    """
    *folders, name = parts_below(path)
    if not _HAS_DESCRIPTORS:
        write_atomically(_without_links(folder, folders) / name, content, sync=False)
        return
    part = f".{secrets.token_hex(8)}.part"
    try:
        with _open_folder(folder, folders, create=True) as parent:
            flags = _flags("WRONLY", "CREAT", "EXCL", "NOFOLLOW")
            try:
                with os.fdopen(os.open(part, flags, 0o666, dir_fd=parent), "wb") as stream:
                    stream.write(content)
                os.replace(part, name, src_dir_fd=parent, dst_dir_fd=parent)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(part, dir_fd=parent)
                raise
    except OSError as error:
        raise _unwritable(folder / path, error) from None


def remove_below(folder: Path, path: str) -> None:
    """Remove a file below ``folder`` as far as possible.

    Raises ``UsageError`` for a path that leaves the folder, and for a symbolic link in place of a
    folder on the way.
    """
    *folders, name = parts_below(path)
    if not _HAS_DESCRIPTORS:
        with contextlib.suppress(OSError):
            (_without_links(folder, folders) / name).unlink()
        return
    with contextlib.suppress(OSError), _open_folder(folder, folders) as parent:
        os.unlink(name, dir_fd=parent)


def files_below(folder: Path, suffix: str = "") -> list[Path]:
    """Return all files below ``folder`` whose names end with ``suffix``, sorted. Links to folders
    are neither followed nor returned.

    Raises ``UsageError`` for folders that are nested more than ``MAX_DEPTH`` deep: Python's own
    walks are recursive.
    """
    files = []
    for place, _, names in os.walk(folder):
        if len(Path(place).relative_to(folder).parts) > MAX_DEPTH:
            raise UsageError(
                f"{folder}: has folders nested more than {MAX_DEPTH} deep. Remove them, or name another folder"
            )
        files += [Path(place, name) for name in names if name.endswith(suffix)]
    return sorted(files)


def remove_tree(path: Path) -> bool:
    """Remove a folder and everything in it as far as possible, and return whether it is gone.
    Symbolic links are removed, never followed.

    ``shutil.rmtree`` alone is recursive before Python 3.14, and keeps a descriptor open for each
    level.
    """
    with contextlib.suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)
    if os.path.lexists(path):
        command = ["find", "-P", os.path.abspath(path), "-mindepth", "1", "-delete"]
        with contextlib.suppress(OSError):
            subprocess.run(command, stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(path, ignore_errors=True)
    return not os.path.lexists(path)


def distinct_files(paths: Iterable[Path]) -> list[Path]:
    """Return the paths without those that are the same file as an earlier one, through links of
    either kind. Missing files stay."""
    files: dict[object, Path] = {}
    for path in paths:
        files.setdefault(_identity(path), path)
    return list(files.values())


@contextlib.contextmanager
def _open_folder(folder: Path, parts: Sequence[str], *, create: bool = False) -> Iterator[int]:
    """Yield a descriptor of the folder ``parts`` below ``folder``, opened part by part.

    Raises ``UsageError`` at a symbolic link.
    """
    descriptor = os.open(folder, _FOLDER)
    try:
        for part in parts:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=descriptor)
            try:
                inner = os.open(part, _FOLDER | _flags("NOFOLLOW"), dir_fd=descriptor)
            except OSError as error:
                if error.errno in _LINK_ERRORS and stat.S_ISLNK(
                    os.lstat(part, dir_fd=descriptor).st_mode
                ):
                    raise UsageError(
                        f"{folder.joinpath(*parts)}: {part} is a symbolic link, and a tree may not lead out of itself. "
                        "Replace it by the folder that it means"
                    ) from None
                raise
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _without_links(folder: Path, parts: Sequence[str]) -> Path:
    """Return the folder ``parts`` below ``folder``. Raises ``UsageError`` if a link or junction leads
    elsewhere."""
    path = folder.joinpath(*parts)
    if path.resolve() != folder.resolve().joinpath(*parts):
        raise UsageError(f"{path}: a link leads elsewhere. Replace it by the folder that it means")
    return path


def _read(path: Path, limit: int, error: type[UsageError]) -> bytes:
    try:
        with open(path, "rb", opener=open_nonblocking) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise error(f"{path}: not a regular file")
            return stream.read(limit) or b""  # None: /proc/kmsg has nothing more to say now
    except (OSError, ValueError) as problem:
        raise error(f"{path}: cannot be read: {_reason(problem)}") from None


def open_nonblocking(path: str, flags: int) -> int:
    """Open a file for ``open`` without waiting for the writer of a pipe, or for what the kernel will
    log next: /proc/kmsg counts as a regular file."""
    return os.open(path, flags | _flags("NONBLOCK", "NOCTTY"))


def is_full(error: BaseException) -> bool:
    """Return whether an error means that a disk, a quota or the limit of a file's size is full."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return isinstance(error, DiskFull) or (isinstance(error, OSError) and error.errno in full)


def _unwritable(path: Path, error: OSError | ValueError) -> UsageError:
    message = f"{path}: cannot be written: {_reason(error)}"
    if is_full(error):
        return DiskFull(f"{message}. Free some space")
    return UsageError(f"{message}. Choose another path")


def _reason(problem: OSError | ValueError) -> str:
    return (problem.strerror if isinstance(problem, OSError) else None) or str(problem)
