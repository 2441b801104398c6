"""Paths of the package's own files, of the cache and of the project around a folder; and who can
change them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import stat
import tempfile
import zipfile
from pathlib import Path
from typing import TypeVar, cast

import platformdirs

from ..errors import UsageError
from .files import expand_home, private_folder

Text = TypeVar("Text", bound=str)
"""Masked text stays masked."""
PACKAGE = Path(__file__).parents[1]
"""Folder of the installed package."""
DATA = PACKAGE / "data"
"""Data files of the package."""
ARCHIVE = DATA / "project.zip"
"""Project files outside the package, in a wheel.

One archive, because pytest reads the list of a plugin's installed files at every start.
"""
_CHECKOUT = re.compile(r"(?<![\w.~])(?:/[\w.+@-]+)+/(?=(?:pytest_vllm_regress|cases)/)")
"""The path of a checkout, in front of one of its files."""


_ROOT_MARKS = ("pyproject.toml", ".git")
_HAS_OWNERS = hasattr(os, "getuid")
"""Whether files have an owner and a mode that say who can change them.

On Windows neither does, so nothing is refused there.
"""


def shipped(name: str) -> Path:
    """Return a file or folder of the project: from the checkout, or from the wheel's archive, which
    is unpacked into the cache on first use."""
    return (_unpacked(ARCHIVE) if ARCHIVE.exists() else PACKAGE.parent) / name


@functools.cache
def _unpacked(archive: Path) -> Path:
    """Return the folder with the content of ``archive``.

    Named by the archive's hash and created atomically.
    """
    name = Path("project", hashlib.sha256(archive.read_bytes()).hexdigest()[:16])
    for root in (cache_root(), writable_root()):
        if (root / name).is_dir():
            check_steps(root, root / name)
            return root / name
    target = writable_root() / name
    with tempfile.TemporaryDirectory(dir=private_folder(target.parent)) as folder:
        with zipfile.ZipFile(archive) as files:
            (whole := Path(folder, "whole")).mkdir(mode=0o755)
            files.extractall(whole)
        try:
            whole.rename(target)
        except OSError:
            if not target.is_dir():  # otherwise another process was first
                raise
    return target


def cache_root() -> Path:
    """Return the cache directory: VLLM_REGRESS_CACHE, or the user's default. Everything in it can
    be rebuilt.

    Creates it if necessary, accessible to the user only, because it holds results, logs and
    interpreters. Raises ``UsageError`` if somebody else can change it, or the folder of the user's
    caches that it is in.
    """
    root = _cache_path()
    if missing_home() is None:
        with contextlib.suppress(OSError):  # whoever writes there reports the error
            private_folder(root)
    if not os.environ.get("VLLM_REGRESS_CACHE"):
        check_writers(root.parent, sticky=True)
    check_writers(root)
    return root


def _cache_path() -> Path:
    setting = os.environ.get("VLLM_REGRESS_CACHE")
    return (
        expand_home(setting).absolute()
        if setting
        else Path(platformdirs.user_cache_dir("vllm-regress"))
    )


def writable_root() -> Path:
    """Return the directory for notes, locks and results:

    ``cache_root()``, or a folder in the temporary directory if that is read-only.
    """
    root = cache_root()
    if can_write(root):
        return root
    user = os.getuid() if hasattr(os, "getuid") else "user"
    fallback = Path(tempfile.gettempdir(), f"vllm-regress-{user}")
    if not is_private(fallback):
        raise UsageError(
            f"{root} cannot be written, and {fallback} is not a folder of this user that nobody else can write to. "
            "Set VLLM_REGRESS_CACHE to a writable path"
        )
    return fallback


def can_write(folder: Path) -> bool:
    """Return whether the folder exists and files can be created in it."""
    return os.access(folder, os.W_OK | os.X_OK)


def missing_home() -> str | None:
    """Return why there is no default cache directory: the home directory is missing.

    None if there is one, or a variable sets the cache.
    """
    if os.environ.get("VLLM_REGRESS_CACHE") or os.environ.get("XDG_CACHE_HOME"):
        return None
    return (
        None if has_home() else f"the home directory {Path('~').expanduser()} does not exist (HOME)"
    )


def has_home() -> bool:
    """Return whether the user's home directory exists, or did when this process first asked:
    programs that we start may create it."""
    return _exists(Path("~").expanduser())


@functools.cache
def _exists(home: Path) -> bool:
    return home.is_absolute() and home.is_dir()


def strip_machine_paths(text: Text) -> Text:
    """Replace the paths of the cache and the home directory by names, and remove the path of a
    checkout."""
    shown: str = text
    for folder, name in ((str(_cache_path()), "CACHE"), (str(Path.home()), "~")):
        shown = shown.replace(folder, name)
    return cast(Text, _CHECKOUT.sub("", shown))


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
        if any(os.path.lexists(folder / mark) for mark in _ROOT_MARKS):
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
