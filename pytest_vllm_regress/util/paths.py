"""Where things are: the package's own files, and what is kept between runs."""

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

import platformdirs

from ..errors import UsageError
from .files import private_folder

PACKAGE = Path(__file__).parents[1]
"""The installed package."""
DATA = PACKAGE / "data"
"""Files that come with the package."""
ARCHIVE = DATA / "project.zip"
"""In a wheel, the files of the project beside the package. One file, because pytest reads the list of all that a plugin installed at every start."""
_CHECKOUT = re.compile(r"(?<![\w.~])(?:/[\w.+@-]+)+/(?=(?:pytest_vllm_regress|cases)/)")
"""Where a project lies, in front of its own files."""


def shipped(name: str) -> Path:
    """A file or folder of the project, beside the package in a checkout; of a wheel's archive, unpacked into the cache at the first use."""
    return (_unpacked(ARCHIVE) if ARCHIVE.exists() else PACKAGE.parent) / name


@functools.cache
def _unpacked(archive: Path) -> Path:
    """The folder with what is in ``archive``: a place for each content, whole or not there."""
    name = Path("project", hashlib.sha256(archive.read_bytes()).hexdigest()[:16])
    for root in (cache_root(), writable_root()):
        if (root / name).is_dir():
            return root / name
    place = writable_root() / name
    with tempfile.TemporaryDirectory(dir=private_folder(place.parent)) as folder:
        with zipfile.ZipFile(archive) as files:
            files.extractall(whole := Path(folder, "whole"))
        try:
            whole.rename(place)
        except OSError:
            if not place.is_dir():  # else another process was first
                raise
    return place


def cache_root() -> Path:
    """Where everything that can be made again is kept: VLLM_REGRESS_CACHE, or the user's cache directory.

    It is made where it is not there yet, for its user alone: results, logs and interpreters are in it.
    """
    given = os.environ.get("VLLM_REGRESS_CACHE")
    root = Path(given).expanduser().absolute() if given else Path(platformdirs.user_cache_dir("vllm-regress"))
    if homeless() is None:
        with contextlib.suppress(OSError):  # who writes there says so
            private_folder(root)
    return root


def writable_root() -> Path:
    """For notes, locks and results: ``cache_root()``, or where that cannot be written a folder of this user's below the temporary one."""
    root = cache_root()
    if can_write(root):
        return root
    place = Path(tempfile.gettempdir(), f"vllm-regress-{os.getuid()}")
    place.mkdir(mode=0o700, exist_ok=True)
    status = place.lstat()
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
        raise UsageError(
            f"{root} cannot be written, and {place} is not ours to write to instead. Set VLLM_REGRESS_CACHE to a place that can be written"
        )
    return place


def can_write(folder: Path) -> bool:
    """A folder that is there and takes files: not of a read-only file system, nor of somebody else."""
    return os.access(folder, os.W_OK | os.X_OK)


def homeless() -> str | None:
    """Why the cache's place cannot be this user's, where nobody named it: there is no home directory. None where all is well."""
    if os.environ.get("VLLM_REGRESS_CACHE") or os.environ.get("XDG_CACHE_HOME"):
        return None
    home = Path("~").expanduser()
    return None if home.is_absolute() and home.is_dir() else f"the home directory {home} is not there (HOME)"


def anywhere(text: str) -> str:
    """``text`` without the folders of the machine that it comes from: the cache, the home and where a checkout lies."""
    for folder, name in ((str(cache_root()), "CACHE"), (str(Path.home()), "~")):
        text = text.replace(folder, name)
    return _CHECKOUT.sub("", text)
