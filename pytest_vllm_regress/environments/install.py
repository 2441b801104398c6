"""Fill the folder of an environment: an overlay, or a virtual environment with a lock, a fresh
resolution or a commit's wheel."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

from ..errors import BuildError
from . import overlay, uv
from .installed import scan
from .locks import exact_pins, lock_text, read_lock, resolver_options, usable_lock
from .recipes import STAND_INS, CommitBuild, Recipe
from .uv import Progress

RESOLUTION = "resolution.txt"
"""File in an environment that was installed without a lock: what uv resolved."""
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
    backend = ["--torch-backend", "cpu"] if "torch" in recipe.relax_local else []
    attempts: list[list[str]] = [[], backend] if backend else [[]]
    if lock is not None:
        local = recipe.lock_local if recipe.relax_local else None
        for index_options in attempts if local else ():
            exact = [*into, *index_options, "--no-deps", "--require-hashes", "-r", str(local)]
            if _possible([*exact, "--dry-run", "--quiet"]):
                uv.run(exact, doing=f"{doing} from {local}", progress=progress)
                return local
        if local:
            progress(
                f"no index has the builds in {local.name}: installing {lock.name}, a larger download"
            )
        uv.run(
            [*into, "--no-deps", "--require-hashes", "-r", "-"],
            doing=f"{doing} from {lock}",
            progress=progress,
            stdin=exact_pins(read_lock(lock)),
        )
        return lock
    if recipe.hashed:
        resolved = lock_text(recipe, wheels_only=True, progress=progress)
        hashes = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", "-"]
        uv.run([*into, *hashes], doing=doing, progress=progress, stdin=exact_pins(resolved))
        return None
    if recipe.relax_local:
        for index_options in attempts:
            with resolver_options(recipe) as options:
                if _possible(
                    [*into, *index_options, *options, "--dry-run", "--quiet", *recipe.requirements]
                ):
                    uv.run(
                        [*into, *index_options, *options, *recipe.requirements],
                        doing=doing,
                        progress=progress,
                    )
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
            "--extra-index-url",
            build.index,
            "--prerelease",
            "allow",
            "--exclude-newer-package",
            f"{package}=9999-01-01",
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
