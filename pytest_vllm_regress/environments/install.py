"""What uv installs into an environment: a lock, a resolution, or a commit's own wheel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

from ..errors import BuildError
from ..util.masking import mask
from . import uv
from .installed import scan
from .locks import exactly, resolver_options
from .recipes import CommitBuild, Recipe
from .uv import Progress


def install(recipe: Recipe, lock: Path | None, python: Path, progress: Progress) -> Path | None:
    """Install into ``python``'s environment; returns the lock that was used.

    Local builds (torch ``+cpu``) are tried first: as the user's index settings find them, then where uv's ``--torch-backend`` looks.
    """
    if recipe.build is not None:
        _install_commit(recipe, recipe.build, python, progress)
        return None
    into: list[str | Path] = ["pip", "install", "--python", python]
    doing = f"{recipe.name}: installing {', '.join(recipe.requirements)}"
    backend = ["--torch-backend", "cpu"] if "torch" in recipe.relax_local else []
    tries: list[list[str]] = [[], backend] if backend else [[]]
    if lock is not None:
        local = recipe.lock_local if recipe.relax_local else None
        for more in tries if local else ():
            exact = [*into, *more, "--no-deps", "--require-hashes", "-r", str(local)]
            if _possible([*exact, "--dry-run", "--quiet"]):
                uv.run(exact, doing=f"{doing} from {local}", progress=progress)
                return local
        if local:
            progress(f"no index has the builds in {local.name}: installing {lock.name}, a larger download")
        uv.run(
            [*into, "--no-deps", "--require-hashes", "-r", "-"],
            doing=f"{doing} from {lock}",
            progress=progress,
            stdin=exactly(lock),
        )
        return lock
    if recipe.relax_local:
        for more in tries:
            with resolver_options(recipe) as options:
                if _possible([*into, *more, *options, "--dry-run", "--quiet", *recipe.requirements]):
                    uv.run([*into, *more, *options, *recipe.requirements], doing=doing, progress=progress)
                    return None
    with resolver_options(recipe, relaxed="==") as options:
        uv.run([*into, *options, *recipe.requirements], doing=doing, progress=progress)
    return None


def _install_commit(recipe: Recipe, build: CommitBuild, python: Path, progress: Progress) -> None:
    """Install a commit's own wheel. Raises ``BuildError`` where the index gave another: a missing commit must not pass for a newer one."""
    package = recipe.target[0]
    lines = [line for line in recipe.requirements if Requirement(line).name != package]
    with resolver_options(recipe) as options:
        # uv asks this index first, and takes the package from no other once it is there. The wheel has no upload day.
        where = [
            "--extra-index-url",
            build.index,
            "--prerelease",
            "allow",
            "--exclude-newer-package",
            f"{package}=9999-01-01",
        ]
        uv.run(
            ["pip", "install", "--python", python, *where, *options, package, *lines],
            doing=f"{recipe.name}: installing the wheel of {build.commit[:10]} from {mask(build.index)}",
            progress=progress,
        )
    site = next((python.parent.parent / "lib").glob("python3.*/site-packages"))
    found = next((each.version for each in scan([site]) if each.name == package), "none")
    if f"g{build.commit[:7]}" not in found:
        raise BuildError(
            f"{mask(build.index)} gave {package} {found}, which is no build of {build.commit[:10]}: it has no wheel of that commit"
        )


def _possible(arguments: Sequence[str | Path]) -> bool:
    """Whether uv finds everything it was asked for. Downloads nothing but metadata."""
    try:
        uv.run(arguments, doing="looking")
    except BuildError:
        return False
    return True
