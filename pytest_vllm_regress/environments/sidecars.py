"""Sidecars: packages in a folder outside of any environment, for cases about processes that import
another version."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import UsageError
from ..util.files import private_folder, remove_tree
from ..util.paths import cache_root, check_steps, writable_root
from . import uv
from .recipes import find_file

LOCKS = "sidecars"


def ensure_sidecar(
    name: str, python: Path, progress: Callable[[str], None] = lambda line: None
) -> Path:
    """Return the folder of the sidecar ``name``, after fetching it if necessary.

    It has the packages in locks/sidecars/NAME.txt, without dependencies, for ``python``'s version
    and platform. Created atomically. Raises ``UsageError`` for an unknown name and ``BuildError``
    if it cannot be fetched.
    """
    folder = _folder()
    lock = folder / f"{name}.txt"
    if lock.parent != folder or not lock.is_file():
        names = ", ".join(lock.stem for lock in sidecar_locks()) or "none"
        raise UsageError(
            f"unknown sidecar {name!r}: {folder} has {names}. Add {lock.name} there (package==version with hashes)"
        )
    arguments: list[str | Path] = ["--no-deps", "--require-hashes", "-r", lock]
    return ensure_packages(
        Path(LOCKS, f"{name}-{_tag(python)}"),
        python,
        arguments,
        f"fetching the sidecar {name}",
        progress,
    )


def ensure_packages(
    place_in_cache: Path,
    python: Path,
    arguments: Sequence[str | Path],
    doing: str,
    progress: Callable[[str], None],
) -> Path:
    """Return a folder of packages for the interpreter ``python``, after fetching it if necessary.
    Created atomically.

    ``place_in_cache`` is relative, ``arguments`` name the packages for ``uv pip install``. Raises
    ``BuildError`` if one cannot be fetched.
    """
    for root in (cache_root(), writable_root()):
        place = root / place_in_cache
        check_steps(root, place)
        if place.is_dir():
            return place
    private_folder(place.parent)
    part = Path(tempfile.mkdtemp(prefix=".part-", dir=place.parent))
    try:
        progress(doing)
        uv.run(
            ["pip", "install", "--quiet", "--python", python, "--target", part, *arguments],
            doing=doing,
            progress=progress,
        )
        try:
            os.rename(part, place)
        except OSError:
            if not place.is_dir():  # otherwise another process was faster
                raise
    finally:
        remove_tree(part)
    return place


def sidecar_locks() -> tuple[Path, ...]:
    """Return the locks of all sidecars."""
    return tuple(sorted(_folder().glob("*.txt")))


def _folder() -> Path:
    return find_file().parent / "locks" / LOCKS


def _tag(python: Path) -> str:
    versions = list((python.parent.parent / "lib").glob("python3.*"))
    return versions[0].name if versions else "python"
