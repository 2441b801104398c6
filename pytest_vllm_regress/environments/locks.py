"""What uv is asked to resolve for a recipe, and locks: every package of an environment with its version and hashes."""

from __future__ import annotations

import contextlib
import datetime
import json
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ..errors import BuildError, EnvironmentFileError, UsageError
from ..util.documents import load_json, parse_toml
from ..util.files import private_folder, read_bounded, write_whole
from ..util.paths import writable_root
from ..util.rundir import scratch
from . import uv
from .recipes import RELEASE, Recipe, for_uv, is_day, pinned
from .uv import Progress

_LOCK_HEAD = "# recipe {fingerprint}, {where}: made by `vllm-regress env lock {name}`, do not edit\n"
_TORCH = ("torch", "torchvision", "torchaudio")
MAX_LOCK = _MAX_NOTE = 16 * 1024 * 1024
_OLDEST = datetime.date(2023, 1, 1)  # before the first release of vLLM


@contextlib.contextmanager
def resolver_options(recipe: Recipe, *, relaxed: str = "") -> Iterator[list[str | Path]]:
    """uv's options for resolving ``recipe``. ``relaxed``: the operator that pins on local builds are relaxed to, if they are.

    ``==X`` is met by X and by X+cpu, and uv prefers the latter; ``===X`` is met by X alone. So where a wheel folder may have local builds, a
    recipe that asks for none gets none: a CPU torch beside the index's torchvision cannot be imported.
    """
    overrides = list(recipe.overrides)
    pins = dict(filter(None, map(pinned, (*recipe.requirements, *recipe.overrides))))
    if recipe.relax_local and relaxed:
        overrides += [f"{name}{relaxed}{version}" for name, version in _pins(recipe, recipe.relax_local).items()]
    elif not recipe.relax_local and "vllm" in pins and uv.has_wheel_folder():
        overrides += [f"{name}==={version}" for name, version in _pins(recipe, _TORCH).items()]
    with scratch() as folder:
        options: list[str | Path] = []
        for flag, content in (("--overrides", overrides), ("--constraints", recipe.constraints)):
            if content:
                file = folder / flag.strip("-")
                file.write_text(for_uv(content))
                options += [flag, file]
        if recipe.exclude_newer:
            options += ["--exclude-newer", _cut_off(recipe.exclude_newer, *recipe.target)]
        for package, day in recipe.exclude_newer_package:
            options += ["--exclude-newer-package", f"{package}={_cut_off(day, package, pins.get(package, ''))}"]
        yield options


def usable_lock(recipe: Recipe) -> Path | None:
    """The recipe's lock, where it was made for this platform. Raises ``EnvironmentFileError`` when the recipe changed since."""
    if recipe.lock is None:
        return None
    for lock in filter(None, (recipe.lock, recipe.lock_local)):
        if recipe.fingerprint not in read_lock(lock).partition("\n")[0]:
            raise EnvironmentFileError(
                f"{lock} was made for another recipe than {recipe.name} has now ({recipe.fingerprint}): "
                f"`vllm-regress env lock {recipe.name}` makes it anew"
            )
    return recipe.lock if f", {_where(recipe)}:" in read_lock(recipe.lock).partition("\n")[0] else None


def exactly(lock: Path) -> str:
    """A lock that no local build satisfies: ``torch==2.13.0`` would take a ``2.13.0+cpu`` from a wheel folder, which has another hash."""
    return re.sub(r"(?m)^([^\s=#]+)==(?!=)", r"\1===", read_lock(lock))


def read_lock(lock: Path) -> str:
    """The text of a lock. Raises ``UsageError`` for what is no file, or longer than any lock."""
    return read_bounded(lock, MAX_LOCK, what="a lock").decode("utf-8", errors="replace")


def lock_text(recipe: Recipe, *, local: bool = False, progress: Progress = lambda line: None) -> str:
    """Resolve ``recipe`` afresh into a lock: every package with its version and the hashes of the files that fit its Python and this machine.

    ``local``: keep pins on local builds (``==X+cpu``) instead of relaxing them. No address of an index gets into it.
    """
    with scratch() as folder:
        out = folder / "pylock.toml"
        with resolver_options(recipe, relaxed="" if local else "===") as options:
            fixed = ("--quiet", "--format", "pylock.toml", "-o", out, "--python", recipe.python)
            arguments = ["pip", "compile", "-", *fixed, *options]
            uv.run(arguments, doing=f"{recipe.name}: locking", stdin=for_uv(recipe.requirements), progress=progress)
        packages = parse_toml(out.read_text(encoding="utf-8"))["packages"]
    head = _LOCK_HEAD.format(fingerprint=recipe.fingerprint, where=_where(recipe), name=recipe.name)
    return head + "".join(_locked(package, recipe.python) for package in packages)


def release_date(package: str, version: str) -> datetime.date:
    """The day ``package`` ``version`` was uploaded: the first by which it can be resolved. Raises ``BuildError`` when there is none."""
    key = f"{package}=={version}"

    def find() -> str:
        early, late = _OLDEST, datetime.datetime.now(datetime.UTC).date()
        if not _exists_by(key, late):
            raise BuildError(f"{key} cannot be found on the package index: there is no such release for this platform")
        while (late - early).days > 1:
            middle = early + (late - early) // 2
            early, late = (early, middle) if _exists_by(key, middle) else (middle, late)
        return late.isoformat()

    return datetime.date.fromisoformat(remembered("release-dates.json", key, find, is_day))


def remembered(file: str, key: str, find: Callable[[], str], fits: Callable[[str], bool] = lambda text: True) -> str:
    """What ``find`` once found for ``key``, kept in ``file`` of the cache: for what does not change. What does not fit there counts for nothing."""
    note = writable_root() / file
    known: dict[str, str] = {}
    with contextlib.suppress(UsageError, ValueError, AttributeError):
        known = {name: text for name, text in load_json(note, _MAX_NOTE).items() if isinstance(text, str)}
    if key not in known or not fits(known[key]):
        known[key] = find()
        with contextlib.suppress(UsageError):  # a note that cannot be kept costs the next one time, no more
            private_folder(note.parent)
            write_whole(note, json.dumps(known))
    return known[key]


def _cut_off(day: str, package: str, version: str) -> str:
    return day if day != RELEASE else (release_date(package, version) + datetime.timedelta(days=1)).isoformat()


def _pins(recipe: Recipe, names: Iterable[str]) -> dict[str, str]:
    """What the target pins those of ``names`` to that the recipe leaves to it, without the local part: read from its metadata."""
    requirement = "==".join(recipe.target)
    with scratch() as folder:
        asking: list[str | Path] = [
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            folder,
            "--python",
            recipe.python,
            requirement,
        ]
        uv.run(asking, doing=f"{recipe.name}: reading what {requirement} asks for")
        metadata = next(folder.glob("*.dist-info/METADATA")).read_text(encoding="utf-8", errors="replace")
    theirs = {canonicalize_name(Requirement(each).name) for each in (*recipe.requirements, *recipe.overrides)}
    found = {}
    for name in names:
        pin = re.search(rf"^Requires-Dist: {re.escape(name)}\s*\(?==\s*([\d.]+)", metadata, re.M | re.I)
        if pin and name not in theirs:
            found[name] = pin[1]
    return found


def _exists_by(requirement: str, day: datetime.date) -> bool:
    arguments = [
        "pip",
        "compile",
        "-",
        "--quiet",
        "--no-deps",
        "--no-header",
        "--python-version",
        "3.11",
        "--exclude-newer",
        day.isoformat(),
    ]
    try:
        uv.run(arguments, doing=f"looking for {requirement}", stdin=requirement)
    except BuildError as error:
        if "cannot be resolved" in str(error):
            return False
        raise
    return True


def _where(recipe: Recipe) -> str:
    return f"Python {recipe.python} on {platform.system()} {platform.machine()}"


def _locked(package: Mapping[str, Any], python: str) -> str:
    """One package of a lock, from its entry in uv's pylock."""
    hashes = sorted({each["hashes"]["sha256"] for each in fitting_files(package, python)})
    if not hashes:
        raise BuildError(
            f"{package['name']} {package['version']} has no file that fits Python {python} on {platform.system()} {platform.machine()}"
        )
    return (
        f"{package['name']}=={package['version']}"
        + "".join(f" \\\n    --hash=sha256:{digest}" for digest in hashes)
        + "\n"
    )


def fitting_files(package: Mapping[str, Any], python: str) -> list[dict[str, Any]]:
    """Of the files that uv's pylock names for a package: the wheels that fit that Python and this machine, else its source."""
    fitting = [each for each in package.get("wheels", ()) if _fits(file_name(each), python)]
    return fitting or [package[key] for key in ("sdist", "archive") if key in package]


def _fits(wheel: str, python: str) -> bool:
    from packaging.tags import compatible_tags, cpython_tags
    from packaging.utils import parse_wheel_filename

    version = tuple(int(part) for part in python.split("."))
    known = (
        *cpython_tags(version, platforms=["any"]),
        *compatible_tags(version, f"cp{python.replace('.', '')}", platforms=["any"]),
    )
    pairs = {(tag.interpreter, tag.abi) for tag in known}
    for tag in parse_wheel_filename(wheel)[3]:
        here = tag.platform == "any" or (
            tag.platform.startswith(("manylinux", "linux_")) and tag.platform.endswith(f"_{platform.machine()}")
        )
        if here and (tag.interpreter, tag.abi) in pairs:
            return True
    return False


def file_name(entry: Mapping[str, Any]) -> str:
    """The name of a file of uv's pylock."""
    return entry.get("name") or unquote(urlsplit(entry.get("url") or entry["path"]).path).rpartition("/")[2]
