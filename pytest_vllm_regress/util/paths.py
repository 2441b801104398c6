"""Paths of the package's own files and of the cache."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import tempfile
import zipfile
from pathlib import Path
from typing import overload

import platformdirs

from ..errors import Masked, UsageError
from .files import expand_home, private_folder
from .project import check_steps, check_writers, is_private

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


@overload
def strip_machine_paths(text: Masked) -> Masked: ...


@overload
def strip_machine_paths(text: str) -> str: ...


def strip_machine_paths(text: str) -> str:
    """Replace the paths of the cache and the home directory by names, and remove the path of a
    checkout."""
    for folder, name in ((str(_cache_path()), "CACHE"), (str(Path.home()), "~")):
        text = text.replace(folder, name)
    return _CHECKOUT.sub("", text)
