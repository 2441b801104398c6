"""Overlays: environments with source code on top of another environment.

An overlay has the code and links to the wheel's generated and compiled files. Its site-packages
come first on the path; a .pth file adds those of the base. Nothing of the base is copied, so an
overlay takes only the space of its Python files.
"""

from __future__ import annotations

import datetime
import json
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ..errors import BuildError, UsageError
from ..util.documents import load_json
from ..util.files import create_below
from ..util.rundir import scratch
from . import git
from .bases import requirements_day, unmet_requirements
from .installed import scan
from .recipes import RELEASE, Overlay, Recipe

_MAX_ABOUT = 64 * 1024

ABOUT = "vllm-regress-source.json"
BYTECODE = "vllm-regress-bytecode"
"""Folder of an environment's bytecode."""
_BASE_PTH = "000-vllm-regress-base.pth"
_LIBRARY = re.compile(r"\.so(\.\d+)*\Z|\.so\.")


@dataclass(frozen=True)
class About:
    """Record in an overlay.

    ``code`` is the commit, and the changed work tree if any; ``remarks`` describe what does not
    come from the source.
    """

    package: str
    code: str
    version: str
    remarks: str


def about(python: Path) -> About | None:
    """Return the record of the overlay that ``python`` belongs to; None if it is in no overlay."""
    try:
        return About(**load_json(python.parent.parent / ABOUT, _MAX_ABOUT))
    except (UsageError, TypeError):
        return None


def base_with_requirements(overlay: Overlay, base: Path) -> Recipe | None:
    """Return the recipe of the base plus the source's unmet requirements; None if the base meets
    all.

    Dependencies are resolved for the date of the last change to the requirements, so that commits
    with equal requirements share the result.
    """
    recipe = overlay.base
    pinned = (str(canonicalize_name(Requirement(line).name)) for line in recipe.overrides)
    installed = {package.name: package.version for package in scan([_site(base)])}
    missing = unmet_requirements(overlay.source, installed, recipe.python, pinned)
    if not missing:
        return None
    day = (requirements_day(overlay.source) + datetime.timedelta(days=1)).isoformat()
    if recipe.exclude_newer not in (None, RELEASE):
        day = max(day, str(recipe.exclude_newer))
    package = recipe.target[0]
    cut_offs = {package: RELEASE} | dict(
        recipe.exclude_newer_package
    )  # the wheel may be newer than the commit
    additions = tuple(line.partition(";")[0].strip() for line in missing)
    return recipe.variant(
        name=f"{recipe.name}+requirements",
        requirements=(*recipe.requirements, *additions),
        overrides=(*recipe.overrides, *additions),
        exclude_newer=day if recipe.exclude_newer else None,
        exclude_newer_package=tuple(sorted(cut_offs.items())) if recipe.exclude_newer else (),
        description=f"{recipe.name} with {', '.join(additions)}",
    )


def build_overlay(overlay: Overlay, base: Path, place: Path) -> None:
    """Build the overlay in the folder ``place``, over the environment of the interpreter ``base``.

    Raises ``BuildError`` for a base without the package, ``OSError`` if ``place`` cannot be
    written.
    """
    source, project = overlay.source, overlay.source.project
    base_site = _site(base)
    info = _metadata(base_site, project.distribution)
    site = place / base_site.relative_to(base.parent.parent)
    site.mkdir(parents=True)
    (place / "bin").mkdir()
    (place / "bin" / "python").symlink_to(base.readlink())
    shutil.copyfile(base.parent.parent / "pyvenv.cfg", place / "pyvenv.cfg")
    written = set()
    for path, content in source.files():
        create_below(site, path, content)
        written.add(path)
    for path in _files_from_wheel(overlay, base_site, written):
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).symlink_to(base_site / path)
    version_file = site / project.folder / "_version.py"
    if version_file.is_symlink():
        version_file.unlink()
        version_file.write_text(_version_module(overlay.version), encoding="utf-8")
    _write_metadata(
        info,
        site / f"{project.distribution.replace('-', '_')}-{overlay.version}.dist-info",
        overlay.version,
    )
    (site / _BASE_PTH).write_text(f"{base_site}\n", encoding="utf-8")
    for pth in base_site.glob("*.pth"):
        (site / pth.name).symlink_to(pth)
    _share_bytecode(base, place)
    code = source.commit.id + (f" with the changes in {source.tree}" if source.changed else "")
    record = About(project.distribution, code, overlay.version, overlay.remarks)
    (place / ABOUT).write_text(json.dumps(asdict(record)), encoding="utf-8")


def _share_bytecode(base: Path, place: Path) -> None:
    """Share the bytecode of the base and of Python between its overlays.

    It would be 90 MB per commit and dominate the import time.
    """
    base_folder = base.parent.parent
    for shared in (base_folder, base.resolve().parent.parent):
        relative = shared.absolute().relative_to("/")
        target, link = base_folder / BYTECODE / relative, place / BYTECODE / relative
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue  # a read-only base has no bytecode
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def _files_from_wheel(overlay: Overlay, base_site: Path, written: set[str]) -> list[str]:
    """Return the wheel's files that the source does not contain by design: libraries and ignored
    (generated) files, but no other module."""
    folder = overlay.source.project.folder
    files = (file for file in sorted((base_site / folder).rglob("*")) if file.is_file())
    paths = (file.relative_to(base_site) for file in files if "__pycache__" not in file.parts)
    extra = [path.as_posix() for path in paths if path.as_posix() not in written]
    rules = overlay.source.read(".gitignore") or b""
    with scratch() as empty:
        generated = git.ignored(rules, extra, empty) if extra else frozenset()
    return [path for path in extra if path in generated or _LIBRARY.search(path)]


def _write_metadata(source: Path, target: Path, version: str) -> None:
    target.mkdir()
    text = (source / "METADATA").read_text(encoding="utf-8", errors="surrogateescape")
    changed = re.sub(r"(?m)^Version: .*$", f"Version: {version}", text, count=1)
    (target / "METADATA").write_text(changed, encoding="utf-8", errors="surrogateescape")
    for name in ("entry_points.txt", "top_level.txt"):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def _version_module(version: str) -> str:
    public, _, local = version.partition("+")
    parts = tuple(int(part) if part.isdecimal() else part for part in public.split("."))
    return f"__version__ = version = {version!r}\n__version_tuple__ = version_tuple = {(*parts, local)!r}\n"


def _site(python: Path) -> Path:
    site = next(iter((python.parent.parent / "lib").glob("python3.*/site-packages")), None)
    if site is None:
        raise BuildError(
            f"{python}: not the interpreter of an environment: there is no lib/python3.*/site-packages"
        )
    return site


def _metadata(site: Path, distribution: str) -> Path:
    for package in scan([site]):
        if package.name == distribution and package.place is not None:
            return package.place
    raise BuildError(f"{site} has no {distribution} to take compiled parts and metadata from")
