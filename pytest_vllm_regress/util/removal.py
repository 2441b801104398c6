"""Remove folders of any depth. ``shutil.rmtree`` is recursive before Python 3.14 and keeps a descriptor for each level."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from pathlib import Path

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def remove_tree(path: Path) -> bool:
    """Remove a folder and everything in it as far as possible, and return whether it is gone. Symbolic links are removed, never followed."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)
    if os.path.lexists(path) and os.rmdir in os.supports_dir_fd:
        with contextlib.suppress(OSError):
            _flatten(path)
            shutil.rmtree(path, ignore_errors=True)
    return not os.path.lexists(path)


def _flatten(path: Path) -> None:
    """Move all folders below ``path`` into it, under random names, so that none is nested more than two deep."""
    top = os.open(path, _FOLDER)
    try:
        waiting = os.listdir(top)
        while waiting:
            with contextlib.suppress(OSError):  # a file or a link, or a folder that cannot be read
                folder = os.open(waiting.pop(), _FOLDER, dir_fd=top)
                try:
                    waiting += _move_folders(folder, top)
                finally:
                    os.close(folder)
    finally:
        os.close(top)


def _move_folders(source: int, target: int) -> list[str]:
    """Move the folders in the folder ``source`` to the folder ``target``, both given as descriptors. Return their new names."""
    moved = []
    with os.scandir(source) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    for name in names:
        with contextlib.suppress(OSError):
            new = secrets.token_hex(16)
            os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)
            moved.append(new)
    return moved
