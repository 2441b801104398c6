"""Source code laid over an environment: a folder of its own with the code, what of the wheel the code does not bring, and the way to the rest.

Its site-packages come first on the path; those of the base, which a .pth file names, come behind them. Nothing of the base is copied, so an
overlay costs its Python files, and commits with the same requirements share everything else.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ..errors import BuildError, UsageError
from ..util.documents import load_json
from ..util.rundir import scratch
from . import git
from .bases import requirements_day, unmet
from .installed import scan
from .recipes import RELEASE, Overlay, Recipe

_MAX_ABOUT = 64 * 1024

ABOUT = "vllm-regress-source.json"
BYTECODE = "vllm-regress-bytecode"
"""Where an environment keeps its compiled modules."""
_BASE_PTH = "000-vllm-regress-base.pth"
_LIBRARY = re.compile(r"\.so(\.\d+)*\Z|\.so\.")


@dataclasses.dataclass(frozen=True)
class About:
    """What an environment made from source says of itself: ``code``: commit (and work tree), ``remarks``: what is not the code's own."""

    package: str
    code: str
    version: str
    remarks: str


def about(python: Path) -> About | None:
    """What the environment of ``python`` was made from; None for any other than an overlay."""
    try:
        return About(**load_json(python.parent.parent / ABOUT, _MAX_ABOUT))
    except (UsageError, TypeError):
        return None


def completed_base(overlay: Overlay, base: Path) -> Recipe | None:
    """The recipe of the base with what the source asks for and the base has not; None where the base has everything.

    Dependencies are those of the day on which the source's requirements became what they are: commits that agree on them share it.
    """
    recipe = overlay.base
    chosen = (str(canonicalize_name(Requirement(line).name)) for line in recipe.overrides)
    missing = unmet(overlay.source, _installed(_site(base)), recipe.python, chosen)
    if not missing:
        return None
    day = (requirements_day(overlay.source) + datetime.timedelta(days=1)).isoformat()
    if recipe.exclude_newer not in (None, RELEASE):
        day = max(day, str(recipe.exclude_newer))
    package = recipe.target[0]
    cut_offs = {package: RELEASE} | dict(recipe.exclude_newer_package)  # the wheel may be younger than the commit
    plain = tuple(line.partition(";")[0].strip() for line in missing)
    return dataclasses.replace(
        recipe,
        name=f"{recipe.name}+requirements",
        requirements=(*recipe.requirements, *plain),
        overrides=(*recipe.overrides, *plain),
        exclude_newer=day if recipe.exclude_newer else None,
        exclude_newer_package=tuple(sorted(cut_offs.items())) if recipe.exclude_newer else (),
        description=f"{recipe.name} with {', '.join(plain)}",
        lock=None,
        lock_local=None,
    )


def lay_over(overlay: Overlay, base: Path, place: Path) -> None:
    """Fill the folder ``place`` with an environment of the overlay, over the environment of the interpreter ``base``.

    Raises ``BuildError`` for a base without the package, ``OSError`` where ``place`` cannot be written.
    """
    source, project = overlay.source, overlay.source.project
    below = _site(base)
    info = _metadata(below, project.distribution)
    site = place / below.relative_to(base.parent.parent)
    site.mkdir(parents=True)
    (place / "bin").mkdir()
    (place / "bin" / "python").symlink_to(base.readlink())
    shutil.copyfile(base.parent.parent / "pyvenv.cfg", place / "pyvenv.cfg")
    there = set()
    for path, content in source.files():
        file = site / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        there.add(path)
    for path in _lent(overlay, below, there):
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).symlink_to(below / path)
    version_file = site / project.folder / "_version.py"
    if version_file.is_symlink():
        version_file.unlink()
        version_file.write_text(_version_module(overlay.version), encoding="utf-8")
    _write_metadata(
        info, site / f"{project.distribution.replace('-', '_')}-{overlay.version}.dist-info", overlay.version
    )
    (site / _BASE_PTH).write_text(f"{below}\n", encoding="utf-8")
    for each in below.glob("*.pth"):
        (site / each.name).symlink_to(each)
    _share_bytecode(base, place)
    code = source.commit.id + (f" with the changes in {source.tree}" if source.changed else "")
    noted = About(project.distribution, code, overlay.version, overlay.remarks)
    (place / ABOUT).write_text(json.dumps(dataclasses.asdict(noted)), encoding="utf-8")


def _share_bytecode(base: Path, place: Path) -> None:
    """Modules of the base and of Python are compiled once for all that lies over it: else 90 MB for each commit, and most of its import."""
    below = base.parent.parent
    for shared in (below, base.resolve().parent.parent):
        inside = shared.absolute().relative_to("/")
        kept, link = below / BYTECODE / inside, place / BYTECODE / inside
        try:
            kept.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue  # a base that cannot be written to keeps none
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(kept)


def _lent(overlay: Overlay, below: Path, there: set[str]) -> list[str]:
    """What the wheel has and the code leaves out on purpose: libraries, and what its .gitignore names. No module that the code has not."""
    folder = overlay.source.project.folder
    extra = []
    for file in sorted((below / folder).rglob("*")):
        path = file.relative_to(below).as_posix()
        if file.is_file() and path not in there and "__pycache__" not in file.parts:
            extra.append(path)
    rules = overlay.source.read(".gitignore") or b""
    with scratch() as empty:
        generated = git.ignored(rules, extra, empty) if extra else frozenset()
    return [path for path in extra if path in generated or _LIBRARY.search(path)]


def _write_metadata(theirs: Path, ours: Path, version: str) -> None:
    ours.mkdir()
    text = (theirs / "METADATA").read_text(encoding="utf-8", errors="surrogateescape")
    changed = re.sub(r"(?m)^Version: .*$", f"Version: {version}", text, count=1)
    (ours / "METADATA").write_text(changed, encoding="utf-8", errors="surrogateescape")
    for name in ("entry_points.txt", "top_level.txt"):
        if (theirs / name).is_file():
            shutil.copyfile(theirs / name, ours / name)


def _version_module(version: str) -> str:
    public, _, local = version.partition("+")
    parts = tuple(int(part) if part.isdecimal() else part for part in public.split("."))
    return f"__version__ = version = {version!r}\n__version_tuple__ = version_tuple = {(*parts, local)!r}\n"


def _site(python: Path) -> Path:
    found = next(iter((python.parent.parent / "lib").glob("python3.*/site-packages")), None)
    if found is None:
        raise BuildError(f"{python}: not an interpreter of an environment: it has no site-packages beside it")
    return found


def _metadata(site: Path, distribution: str) -> Path:
    for package in scan([site]):
        if package.name == distribution and package.place is not None:
            return package.place
    raise BuildError(f"{site} has no {distribution} that lends its compiled parts and metadata")


def _installed(site: Path) -> Mapping[str, str]:
    return {package.name: package.version for package in scan([site])}
