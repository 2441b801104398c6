"""Fill the folder of an environment: an overlay, or a virtual environment with a lock, a fresh
resolution or a commit's wheel. And fetch sidecars: packages in a folder outside of any environment,
for cases about processes that import another version.

An overlay has source code, and links to the wheel's generated and compiled files. Its site-packages
come first on the path; a .pth file adds those of the base. Nothing of the base is copied, so an
overlay takes only the space of its Python files.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ..errors import BuildError, UsageError
from ..util.documents import load_json
from ..util.files import create_below, private_folder, remove_tree
from ..util.paths import cache_root, check_steps, writable_root
from ..util.rundir import scratch
from . import git, uv
from .bases import requirements_day, unmet_requirements
from .installed import scan
from .locks import exact_pins, lock_text, read_lock, resolver_options, usable_lock
from .recipes import LOCKS, RELEASE, STAND_INS, CommitBuild, Overlay, Recipe, find_file
from .uv import Progress

RESOLUTION = "resolution.txt"
"""File in an environment that was installed without a lock: what uv resolved."""
_MAX_ABOUT = 64 * 1024
"""Bytes of a record, which is one line."""

ABOUT = "vllm-regress-source.json"
BYTECODE = "vllm-regress-bytecode"
"""Folder of an environment's bytecode."""
_BASE_PTH = "000-vllm-regress-base.pth"
_LIBRARY = re.compile(r"\.so(\.\d+)*\Z|\.so\.")
SIDECARS = "sidecars"
"""Folder of the locks of sidecars, and of sidecars in the cache."""
_MAX_SCRIPT = 64 * 1024
"""Bytes of a script with a path in its first line; larger files in bin are programs."""
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
        build_overlay(recipe.overlay, base, folder)
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
        if local:
            commands = [[*into, *backend, *hashed, "-r", local] for backend in backends]
            if _run_possible(commands, f"{doing} from {local}", progress):
                return local
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
        with resolver_options(recipe) as options:
            commands = [[*into, *backend, *options, *recipe.requirements] for backend in backends]
            if _run_possible(commands, doing, progress):
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


def _run_possible(commands: Iterable[Sequence[str | Path]], doing: str, progress: Progress) -> bool:
    """Run the first of these commands for which uv finds all requirements; for that only metadata
    is downloaded. Return whether there is one."""
    for command in commands:
        try:
            uv.run([*command, "--dry-run", "--quiet"], doing="looking")
        except BuildError:
            continue
        uv.run(command, doing=doing, progress=progress)
        return True
    return False


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
