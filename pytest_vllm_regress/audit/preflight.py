"""What an environment itself would break, whatever the versions of vLLM say: two Rays, another torch, a driver that is too old.

Everything is read from files and from NVML; nothing of the interpreter's packages is imported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ..environments.installed import VLLM, VLLM_BUILDS, Interpreter, Package, metadata
from ..gpus.fit import compare, cuda_of, modes, tools
from ..gpus.nvml import Machine, look
from ..util.documents import parse_json
from ..util.files import peek
from ..util.validation import shown
from ..util.versions import is_version, marker_holds, requirement_of
from .checks import CHECKS

_SHADOWED = (
    "vllm",
    "torch",
    "transformers",
    "triton",
    "xgrammar",
    "lm-format-enforcer",
    "llguidance",
    "outlines",
    "outlines-core",
    "numpy",
)
_OTHER_WORKERS = ("conda", "container", "image_uri", "py_executable")
_PLUGINS = ("vllm.platform_plugins", "vllm.general_plugins")
MAX_NAMED = 8


@dataclasses.dataclass(frozen=True)
class Concern:
    """One thing that is wrong, or (``counts`` False) only worth knowing. ``id`` is one of ``CHECKS``, ``found`` a sentence."""

    id: str
    found: str
    counts: bool = True
    place: Path | None = None

    @property
    def title(self) -> str:
        return CHECKS[self.id][0]

    @property
    def advice(self) -> str:
        return CHECKS[self.id][1]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "id": self.id,
            "title": self.title,
            "found": self.found,
            "advice": self.advice,
            "counts": self.counts,
            "place": str(self.place) if self.place else None,
        }


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What counts beside the interpreter. ``raylets``: programs of Ray nodes that run here; ``machine``: what NVML says, or why nothing."""

    environ: Mapping[str, str]
    raylets: tuple[Path, ...]
    machine: Machine | str


def look_around() -> Surroundings:
    """The surroundings of this process."""
    return Surroundings(dict(os.environ), tuple(_raylets()), look())


def preflight(interpreter: Interpreter, around: Surroundings) -> tuple[Concern, ...]:
    """Every concern, gravest first."""
    here = _Installed(interpreter, interpreter.distributions())
    checks: Sequence[Callable[[_Installed, Surroundings], Iterator[Concern]]] = (
        _two_builds, _shadowed, _two_rays, _other_workers, _requirements, _setuptools, _cuda, _plugins)  # fmt: skip
    return tuple(
        sorted((concern for check in checks for concern in check(here, around)), key=lambda each: not each.counts)
    )


@dataclasses.dataclass(frozen=True)
class _Installed:
    interpreter: Interpreter
    distributions: tuple[Package, ...]

    def get(self, name: str) -> Package | None:
        """The one that is imported."""
        return next((each for each in self.distributions if each.name == name), None)

    @property
    def vllm(self) -> Package | None:
        return next((found for name in VLLM if (found := self.get(name))), None)

    def rays(self) -> list[tuple[Path, str]]:
        """Every module ray on the path and its version; the first is the one that is imported."""
        return [(folder, version) for folder in self.interpreter.path if (version := ray_version(folder))]


def ray_version(folder: Path) -> str | None:
    """The version of the module ray in ``folder``, None where there is none."""
    module = folder / "ray"
    if not (module / "__init__.py").is_file():
        return None
    found = re.search(r"^version[ \t]*=[ \t]*['\"]([^'\"\n]{1,100})", peek(module / "_version.py", 64 * 1024), re.M)
    return found[1] if found else "?"


def _two_builds(here: _Installed, around: Surroundings) -> Iterator[Concern]:
    builds = [found for name in VLLM if (found := here.get(name))]
    if len(builds) > 1:
        named = " and ".join(f"{each.name} {each.version}" for each in builds)
        yield Concern(
            "two-vllms", f"{named} are both installed: each wrote its files over the other's.", place=builds[1].place
        )


def _shadowed(here: _Installed, around: Surroundings) -> Iterator[Concern]:
    for name in (*_SHADOWED, *VLLM_BUILDS):
        first = here.get(name)
        others = [each for each in here.distributions if first and each.name == name and each.version != first.version]
        hidden = sorted({f"{each.version} in {_parent(each)}" for each in others})
        if first and hidden:
            yield Concern(
                "shadowed-package",
                f"{name} {first.version} in {_parent(first)} hides {', '.join(hidden)}.",
                place=first.place,
            )


def _two_rays(here: _Installed, around: Surroundings) -> Iterator[Concern]:
    rays = here.rays()
    hidden = [f"{version} in {folder}" for folder, version in rays[1:] if version != rays[0][1]]
    if hidden:
        folder, version = rays[0]
        yield Concern(
            "two-rays",
            f"Ray {version} in {folder} hides {', '.join(hidden)}; Ray's workers may find the other one.",
            place=folder,
        )
    for entry in filter(None, around.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if not os.path.isabs(entry) and ray_version(Path(entry)):
            yield Concern(
                "two-rays",
                f"PYTHONPATH has {entry!r}, which is relative and holds a Ray: the workers run elsewhere and do not find it.",
            )


def _other_workers(here: _Installed, around: Surroundings) -> Iterator[Concern]:
    rays = here.rays()
    if not rays:
        return
    ours = rays[0][1]
    for variable, runtime in _runtime_environments(around.environ):
        for folder in filter(None, str(_table(runtime.get("env_vars")).get("PYTHONPATH", "")).split(os.pathsep)):
            version = ray_version(Path(folder))
            if version and version != ours:
                found = f"{variable} puts {folder} before the workers' packages: Ray {version}; the driver has {ours}."
                yield Concern("workers-other-ray", found, place=Path(folder))
        for wanted in _requirements_of(runtime):
            if canonicalize_name(wanted.name) == "ray" and not _meets(ours, wanted):
                yield Concern(
                    "workers-other-ray", f"{variable} installs {wanted} for the workers; the driver has {ours}."
                )
        other = ", ".join(key for key in _OTHER_WORKERS if key in runtime)
        if other:
            yield Concern(
                "workers-elsewhere",
                f"{variable} sets {other}: which Ray they find cannot be seen; the driver has {ours}.",
                counts=False,
            )
    for raylet in around.raylets:
        module = raylet.parents[4] if len(raylet.parents) > 4 else raylet
        version = ray_version(module.parent)
        if version and version != ours:
            found = f"A Ray node of this machine runs Ray {version} from {module}; the driver has {ours}, and joins it where its address says so."
            yield Concern("workers-other-ray", found, place=module)
    address = around.environ.get("RAY_ADDRESS")
    if address:
        yield Concern(
            "ray-cluster",
            f"RAY_ADDRESS={shown(address)}: its nodes are not asked for their Ray; the driver has {ours}.",
            counts=False,
        )
    command = _shebang(shutil.which("ray", path=around.environ.get("PATH")))
    theirs = (
        next((v for site in command.parent.parent.glob("lib/python3*/site-packages") if (v := ray_version(site))), None)
        if command
        else None
    )
    if theirs and theirs != ours:
        yield Concern(
            "other-ray-command",
            f"`ray start` on this PATH starts Ray {theirs} of {command}; the driver has {ours}.",
            counts=False,
        )


def _requirements(here: _Installed, around: Surroundings) -> Iterator[Concern]:
    vllm = here.vllm
    if vllm is None or vllm.place is None:
        return
    wrong = []
    for wanted in _wanted(vllm.place, {**here.interpreter.markers(), "extra": ""}):
        installed = here.get(canonicalize_name(wanted.name))
        if installed is None:
            wrong.append(f"{wanted.name} is missing (wants {wanted.specifier or 'any'})")
        elif not _meets(installed.version, wanted):
            wrong.append(f"{installed.name} is {installed.version} (wants {wanted.specifier})")
    if wrong:
        more = f" and {len(wrong) - MAX_NAMED} more" if len(wrong) > MAX_NAMED else ""
        yield Concern(
            "requirement-not-met",
            f"{vllm.name} {vllm.version}: {', '.join(wrong[:MAX_NAMED])}{more}.",
            place=vllm.place,
        )


def _setuptools(here: _Installed, around: Surroundings) -> Iterator[Concern]:
    triton = here.get("triton")
    if triton and _meets(triton.version, Requirement("triton<3.3")) and here.get("setuptools") is None:
        yield Concern(
            "no-setuptools",
            f"triton {triton.version} imports setuptools without asking for it; there is none.",
            place=triton.place,
        )


def _cuda(here: _Installed, around: Surroundings) -> Iterator[Concern]:
    vllm, torch = here.vllm, here.get("torch")
    if vllm is not None and vllm.name == "vllm" and "+cpu" not in vllm.version and torch is not None:
        for name, found, counts in compare(vllm.version, torch.version, cuda_of(torch), around.machine):
            yield Concern(name, found, counts, torch.place)
        if isinstance(around.machine, Machine):
            python = here.interpreter
            for name, found, counts in (*modes(around.machine), *tools(python.python, python.version, around.environ)):
                yield Concern(name, found, counts)


def _plugins(here: _Installed, around: Surroundings) -> Iterator[Concern]:
    allowed = around.environ.get("VLLM_PLUGINS")
    found: dict[str, list[str]] = {group: [] for group in _PLUGINS}
    for package in here.distributions:
        for group, name in _entry_points(package):
            if allowed is None or name in allowed.split(","):
                found[group].append(f"{name} of {package.name} {package.version}")
    platforms, others = found.values()
    if len(platforms) > 1:
        yield Concern("two-platform-plugins", f"{', '.join(platforms)}: vLLM takes at most one that answers.")
    elif platforms:
        yield Concern(
            "platform-plugin", f"{platforms[0]} is asked for the platform instead of vLLM's own.", counts=False
        )
    if others:
        yield Concern("general-plugin", f"{', '.join(others[:MAX_NAMED])}.", counts=False)


def _wanted(place: Path, markers: Mapping[str, str]) -> Iterator[Requirement]:
    """The requirements of a distribution that hold under ``markers``."""
    for key, value in metadata(place):
        wanted = requirement_of(value) if key == "Requires-Dist" else None
        if wanted is not None and (wanted.marker is None or marker_holds(wanted.marker, markers)):
            yield wanted


def _entry_points(package: Package) -> Iterator[tuple[str, str]]:
    group = ""
    for line in peek(package.place / "entry_points.txt", 1024 * 1024).splitlines() if package.place else ():
        if line.startswith("["):
            group = line.strip("[] \t")
        elif group in _PLUGINS and "=" in line:
            yield group, line.partition("=")[0].strip()


def _runtime_environments(environ: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Runtime environments that variables of Ray's give to its workers."""
    for name, value in environ.items():
        if name.startswith("RAY_") and value.lstrip().startswith("{"):
            with contextlib.suppress(ValueError):
                given = parse_json(value)
                yield name, _table(given.get("runtime_env", given))


def _requirements_of(runtime: Mapping[str, Any]) -> Iterator[Requirement]:
    for key in ("pip", "uv"):
        given = runtime.get(key)
        lines = given.get("packages") if isinstance(given, dict) else given
        for line in lines if isinstance(lines, list) else ():
            wanted = requirement_of(str(line))
            if wanted is not None:
                yield wanted


def _raylets() -> Iterator[Path]:
    import psutil

    for process in psutil.process_iter(["name", "exe"]):
        if process.info["name"] == "raylet" and process.info["exe"]:
            yield Path(process.info["exe"])


def _shebang(script: str | None) -> Path | None:
    if script is None:
        return None
    first, _, _ = peek(Path(script), 500).partition("\n")
    words = first.removeprefix("#!").split()
    return Path(words[0]) if words else None


def _meets(version: str, wanted: Requirement) -> bool:
    return not is_version(version) or wanted.specifier.contains(version, prereleases=True)


def _parent(package: Package) -> str:
    return str(package.place.parent) if package.place else "?"


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
