"""Fill the folder of an environment: an overlay, or a virtual environment with a lock, a fresh
resolution or a commit's wheel. And fetch sidecars: packages in a folder outside of any environment,
for cases about processes that import another version."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

from ..errors import BuildError, UsageError
from ..util.files import private_folder, remove_tree
from ..util.paths import cache_root, check_steps, writable_root
from . import overlay, uv
from .installed import scan
from .locks import exact_pins, lock_text, read_lock, resolver_options, usable_lock
from .recipes import LOCKS, STAND_INS, CommitBuild, Recipe, find_file
from .uv import Progress

RESOLUTION = "resolution.txt"
"""File in an environment that was installed without a lock: what uv resolved."""
SIDECARS = "sidecars"
"""Folder of the locks of sidecars, and of sidecars in the cache."""
_MAX_SCRIPT = 64 * 1024
logger = logging.getLogger("vllm_regress.environments")


def fill_environment(
    recipe: Recipe, folder: Path, base: Path | None, progress: Progress
) -> Path | None:
    """Create ``recipe``'s environment in ``folder``. Return the lock that was used, if any.

    ``base`` is the interpreter of the environment below an overlay, or of the one that is copied
    before the packages that differ are installed.
    """
    if recipe.overlay is not None:
        assert base is not None
        logger.info("%s: overlay of %s over %s", recipe.name, recipe.overlay.source.key, base)
        overlay.build_overlay(recipe.overlay, base, folder)
        return None
    lock = usable_lock(recipe)
    progress(
        f"{recipe.name}: building ({f'from {lock.name}' if lock else 'no lock for it: resolving'})"
    )
    uv.run(
        ["venv", "--quiet", "--python", recipe.python, folder],
        doing=f"{recipe.name}: making a Python {recipe.python} environment",
    )
    python = folder / "bin" / "python"
    if base is not None:
        progress(
            f"{recipe.name}: a copy of {base.parent.parent.name}, of which only what differs is installed"
        )
        link_packages(base.parent.parent, folder)
    used_lock = install(recipe, lock, python, lambda line: progress(f"{recipe.name}: {line}"))
    site = next((folder / "lib").glob("python3.*/site-packages"))
    for module in recipe.stand_ins:
        shutil.copytree(STAND_INS / module, site / module, dirs_exist_ok=True)
    if used_lock is None:
        versions = uv.run(
            ["pip", "freeze", "--quiet", "--python", python],
            doing=f"{recipe.name}: listing what was installed",
        )
        (folder / RESOLUTION).write_text(versions + "\n", encoding="utf-8")
    return used_lock


def link_packages(base: Path, folder: Path) -> None:
    """Give the new environment ``folder`` the packages of ``base`` as hard links, and its scripts
    with the path of the new interpreter.

    Installers replace files and never write into them, so that the base stays as it is.
    """
    (site,) = folder.glob("lib/python3.*/site-packages")
    for source, target in ((base / site.relative_to(folder), site), (base / "bin", folder / "bin")):
        for path in source.rglob("*"):
            place = target / path.relative_to(source)
            if path.is_dir() and not path.is_symlink():
                place.mkdir(exist_ok=True)
            elif not os.path.lexists(place):
                os.link(path, place, follow_symlinks=False)
    for script in (folder / "bin").iterdir():
        if not script.is_symlink() and script.stat().st_size <= _MAX_SCRIPT:
            content = script.read_bytes()
            if content.startswith(b"#!") and os.fsencode(base) in content:
                mode = script.stat().st_mode
                script.unlink()
                script.write_bytes(content.replace(os.fsencode(base), os.fsencode(folder)))
                script.chmod(mode)


def install(recipe: Recipe, lock: Path | None, python: Path, progress: Progress) -> Path | None:
    """Install ``recipe`` into ``python``'s environment. Return the lock that was used, if any.

    Tries local builds (torch ``+cpu``) first: from the user's indexes, then from the index of uv's
    ``--torch-backend``.
    """
    if recipe.build is not None:
        _install_commit(recipe, recipe.build, python, progress)
        return None
    into: list[str | Path] = ["pip", "install", "--python", python]
    doing = f"{recipe.name}: installing {', '.join(recipe.requirements)}"
    hashed = ["--no-deps", "--require-hashes"]
    backends = [[], ["--torch-backend", "cpu"]] if "torch" in recipe.relax_local else [[]]
    if lock is not None:
        local = recipe.lock_local if recipe.relax_local else None
        for backend in backends if local else ():
            exact = [*into, *backend, *hashed, "-r", str(local)]
            if _possible([*exact, "--dry-run", "--quiet"]):
                uv.run(exact, doing=f"{doing} from {local}", progress=progress)
                return local
        if local:
            progress(
                f"no index has the builds in {local.name}: installing {lock.name}, a larger download"
            )
        uv.run(
            [*into, *hashed, "-r", "-"],
            doing=f"{doing} from {lock}",
            progress=progress,
            stdin=exact_pins(read_lock(lock)),
        )
        return lock
    if recipe.hashed:
        resolved = lock_text(recipe, wheels_only=True, progress=progress)
        wheels = [*into, *hashed, "--only-binary", ":all:", "-r", "-"]
        uv.run(wheels, doing=doing, progress=progress, stdin=exact_pins(resolved))
        return None
    if recipe.relax_local:
        for backend in backends:
            with resolver_options(recipe) as options:
                exact = [*into, *backend, *options, *recipe.requirements]
                if _possible([*exact, "--dry-run", "--quiet"]):
                    uv.run(exact, doing=doing, progress=progress)
                    return None
    with resolver_options(recipe, relaxed="==") as options:
        uv.run([*into, *options, *recipe.requirements], doing=doing, progress=progress)
    return None


def _install_commit(recipe: Recipe, build: CommitBuild, python: Path, progress: Progress) -> None:
    """Install a commit's own wheel.

    Raises ``BuildError`` if the index provides another commit's, such as the newest one's.
    """
    package = recipe.target[0]
    other_requirements = [line for line in recipe.requirements if Requirement(line).name != package]
    with resolver_options(recipe) as options:
        # uv prefers this index and takes the package from no other one. The wheel has no upload
        # date.
        index = [
            *("--extra-index-url", build.index, "--prerelease", "allow"),
            f"--exclude-newer-package={package}=9999-01-01",
        ]
        uv.run(
            ["pip", "install", "--python", python, *index, *options, package, *other_requirements],
            doing=f"{recipe.name}: installing the wheel of {build.commit[:10]} from {build.masked_index}",
            progress=progress,
        )
    site = next((python.parent.parent / "lib").glob("python3.*/site-packages"))
    version = next((entry.version for entry in scan([site]) if entry.name == package), "none")
    if f"g{build.commit[:7]}" not in version:
        raise BuildError(
            f"{build.masked_index} provided {package} {version}, which is not a build of {build.commit[:10]}: the index has no wheel of that commit"
        )


def _possible(arguments: Sequence[str | Path]) -> bool:
    """Return whether uv finds all requirements. Downloads only metadata."""
    try:
        uv.run(arguments, doing="looking")
    except BuildError:
        return False
    return True


def ensure_sidecar(name: str, python: Path, progress: Progress = lambda line: None) -> Path:
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
        Path(SIDECARS, f"{name}-{_tag(python)}"),
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
    progress: Progress,
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
    return find_file().parent / LOCKS / SIDECARS


def _tag(python: Path) -> str:
    versions = list((python.parent.parent / "lib").glob("python3.*"))
    return versions[0].name if versions else "python"
