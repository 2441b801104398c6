"""The project around a folder, and the ownership of its files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..errors import UsageError

ROOT_MARKS = ("pyproject.toml", ".git")
_HAS_OWNERS = hasattr(os, "getuid")
"""Whether files have an owner and a mode that say who can change them.

On Windows neither does, so nothing is refused there.
"""


def folders_of_project(start: Path) -> tuple[Path, ...]:
    """Return ``start`` and its parents up to the project's root, which has a pyproject.toml or a
    .git; only ``start`` outside of a project.

    Folders above the root are not searched, because other users may be able to write to them
    (/tmp).
    """
    start = start.absolute()
    folders: list[Path] = []
    for folder in (start, *start.parents):
        folders.append(folder)
        if any(os.path.lexists(folder / mark) for mark in ROOT_MARKS):
            return tuple(folders)
    return (start,)


def check_owner(path: Path, instead: str) -> None:
    """Raise ``UsageError`` unless the user or root owns ``path``: another owner could change what
    is run. ``instead`` advises what to do."""
    try:
        owner = path.stat().st_uid
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    if _HAS_OWNERS and owner not in (os.getuid(), 0):
        raise UsageError(
            f"{path}: belongs to another user (uid {owner}), so it is not used by default. {instead}"
        )


def check_steps(root: Path, path: Path) -> None:
    """Raise ``UsageError`` if somebody else can change a folder from ``root`` to ``path``, or
    ``path``. Missing ones are ignored."""
    below = path.relative_to(root).parts
    for count in range(len(below) + 1):
        check_writers(root.joinpath(*below[:count]))


def check_writers(path: Path, *, sticky: bool = False, linked: bool = True) -> None:
    """Raise ``UsageError`` if somebody but the user and root can change ``path``, or what it links
    to.

    ``sticky``: a folder like /tmp is allowed, where nobody can rename another user's entries.
    ``linked``: follow a link.
    """
    try:
        for status in (path.lstat(), path.stat()) if linked else (path.lstat(),):
            if writers := _other_writers(status, sticky=sticky):
                raise UsageError(
                    f"{path}: {writers}, who could change what is run from there. Make it yours alone (chown, chmod go-w) if you know what is in "
                    "it, or set VLLM_REGRESS_CACHE to another folder"
                )
    except OSError:
        return  # missing, or not to be read: whoever uses it reports that


def is_world_writable(path: Path) -> bool:
    """Return whether every user can write to the file or folder, or to what it links to."""
    try:
        return bool(path.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return False


def _other_writers(status: os.stat_result, *, sticky: bool) -> str:
    """Return who can change a file or folder apart from the user and root, in words; empty if
    nobody can."""
    if not _HAS_OWNERS:
        return ""
    if status.st_uid not in (os.getuid(), 0):
        return f"belongs to another user (uid {status.st_uid})"
    if stat.S_ISLNK(status.st_mode) or (sticky and status.st_mode & stat.S_ISVTX):
        return ""
    if status.st_mode & stat.S_IWOTH:
        return f"mode {stat.S_IMODE(status.st_mode):o} lets everybody write"
    if status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid):
        return f"mode {stat.S_IMODE(status.st_mode):o} lets group {status.st_gid} write"
    return ""


def _is_own_group(gid: int) -> bool:
    """Return whether only the user is in the group, as pam_umask assumes for a group of the user's
    name. It never does so for root."""
    import grp
    import pwd

    uid = os.getuid()
    try:
        user, group = pwd.getpwuid(uid).pw_name, grp.getgrgid(gid)
    except KeyError:
        return False
    return uid != 0 and group.gr_name == user and set(group.gr_mem) <= {user}


def is_private(folder: Path) -> bool:
    """Create ``folder`` if necessary.

    Return whether it is a directory (no link) that only the user can write to.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = os.lstat(folder)
    except OSError:
        return False
    return not _HAS_OWNERS or (
        status.st_uid == os.getuid() and status.st_mode & 0o170022 == 0o040000
    )
