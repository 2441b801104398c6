"""The project around a folder: where cases and environments are looked for, and whose files count."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import UsageError

ROOT_MARKS = ("pyproject.toml", ".git")


def folders_of_project(start: Path) -> tuple[Path, ...]:
    """``start`` and the folders above it up to the project's root, which has a pyproject.toml or a .git; ``start`` alone outside of any project.

    Above a root everything belongs to others: a folder for everybody's files may be among it.
    """
    here = start.absolute()
    found: list[Path] = []
    for folder in (here, *here.parents):
        found.append(folder)
        if any(os.path.lexists(folder / mark) for mark in ROOT_MARKS):
            return tuple(found)
    return (here,)


def check_owner(path: Path, instead: str) -> None:
    """Raise ``UsageError`` for what neither the user nor root owns: who owns it could change what is run. ``instead``: what to do then."""
    try:
        owner = path.stat().st_uid
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    if owner not in (os.getuid(), 0):
        raise UsageError(
            f"{path}: belongs to another user (uid {owner}), so it is not used without being asked for. {instead}"
        )


def is_private(folder: Path) -> bool:
    """Make ``folder``, which anybody could have made before; whether it is a directory of ours that nobody else may write to, and no link."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = os.lstat(folder)
    except OSError:
        return False
    return status.st_uid == os.getuid() and status.st_mode & 0o170022 == 0o040000
