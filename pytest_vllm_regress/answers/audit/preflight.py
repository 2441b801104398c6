"""Problems of an environment that no version of vLLM fixes: two versions of Ray, the wrong torch, a
driver that is too old.

All facts come from files and from NVML; no package of the interpreter is imported.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ...engines.gpus.fit import compare, cuda_of, modes, tools
from ...engines.gpus.nvml import Machine, query_machine
from ...environments.installed import GRAMMARS, VLLM, Interpreter, Package, metadata
from ...util import codec
from ...util.documents import parse_json
from ...util.files import peek
from ...util.paths import DATA
from ...util.validation import format_value
from ...util.versions import is_version, marker_holds, requirement_of

_SHADOWED = (*VLLM, *GRAMMARS, "torch", "transformers", "triton", "outlines", "numpy")
_OTHER_WORKERS = ("conda", "container", "image_uri", "py_executable")
MAX_NAMED = 8


@dataclass(frozen=True)
class Check:
    """What a check finds, and what to do about it."""

    title: str
    advice: str


CHECKS = codec.load(
    dict[str, Check], DATA / "preflight.toml", 64 * 1024, what="the checks of the preflight"
)
"""By id. ``engines/gpus/fit.py`` yields some of the ids."""


@dataclass(frozen=True)
class Concern:
    """A problem, or (``counts`` False) a note.

    ``id`` is a key of ``CHECKS``, ``detail`` a sentence about this environment.
    """

    id: str
    detail: str
    counts: bool = True
    place: Path | None = None

    @property
    def title(self) -> str:
        return CHECKS[self.id].title

    @property
    def advice(self) -> str:
        return CHECKS[self.id].advice

    def to_json(self) -> dict[str, Any]:
        own = {"id": self.id, "found": self.detail, "counts": self.counts, "place": self.place}
        return own | vars(CHECKS[self.id])


@dataclass(frozen=True)
class Host:
    """The machine around the interpreter.

    ``raylets``: executables of running Ray nodes; ``machine``: from NVML, or why NVML is
    unavailable.
    """

    environ: Mapping[str, str]
    raylets: tuple[Path, ...]
    machine: Machine | str


def inspect_host() -> Host:
    """Return the environment variables, Ray nodes and GPUs of this machine."""
    import psutil

    processes = psutil.process_iter(["name", "exe"])
    raylets = (p.info["exe"] for p in processes if p.info["name"] == "raylet")
    return Host(dict(os.environ), tuple(map(Path, filter(None, raylets))), query_machine())


def preflight(interpreter: Interpreter, host: Host) -> tuple[Concern, ...]:
    """Return all concerns, problems before notes."""
    installed = _Installed(interpreter, host)
    checks = (
        installed.versions,
        installed.rays_on_path,
        installed.rays_of_workers,
        installed.requirements,
        installed.cuda,
        installed.plugins,
    )
    concerns = (concern for check in checks for concern in check())
    return tuple(sorted(concerns, key=lambda concern: not concern.counts))


def ray_version(folder: Path) -> str | None:
    """Return the version of the package ``ray`` in ``folder``; None if there is none."""
    module = folder / "ray"
    if not (module / "__init__.py").is_file():
        return None
    pattern = r"^version[ \t]*=[ \t]*['\"]([^'\"\n]{1,100})"
    match = re.search(pattern, peek(module / "_version.py", 64 * 1024), re.M)
    return match[1] if match else "?"


class _Installed:
    """What an interpreter imports on a host: of each package the first one on the path. A check is
    a method that yields concerns."""

    def __init__(self, interpreter: Interpreter, host: Host) -> None:
        self._interpreter, self._host = interpreter, host
        self._distributions = interpreter.distributions()
        self._builds = [package for name in VLLM if (package := self._get(name))]
        versions = ((folder, ray_version(folder)) for folder in interpreter.path)
        self._rays = [(folder, version) for folder, version in versions if version]
        """Folder and version of every Ray on the path; the first one is the driver's."""

    def _get(self, name: str) -> Package | None:
        return next((package for package in self._distributions if package.name == name), None)

    def versions(self) -> Iterator[Concern]:
        if len(self._builds) > 1:
            names = " and ".join(f"{package.name} {package.version}" for package in self._builds)
            detail = f"{names} are both installed: the second one overwrote files of the first."
            yield Concern("two-vllms", detail, place=self._builds[1].place)
        for name in _SHADOWED:
            same = [package for package in self._distributions if package.name == name]
            hidden = {f"{p.version} in {_parent(p)}" for p in same if p.version != same[0].version}
            if hidden:
                shown = f"{name} {same[0].version} in {_parent(same[0])}"
                detail = f"{shown} hides {', '.join(sorted(hidden))}."
                yield Concern("shadowed-package", detail, place=same[0].place)
        triton = self._get("triton")
        if (
            triton
            and not self._get("setuptools")
            and _meets(triton.version, Requirement("triton<3.3"))
        ):
            detail = f"triton {triton.version} imports setuptools without requiring it, and setuptools is not installed."
            yield Concern("no-setuptools", detail, place=triton.place)

    def rays_on_path(self) -> Iterator[Concern]:
        hidden = ", ".join(
            f"{version} in {path}" for path, version in self._rays if self._other_ray(path)
        )
        if hidden:
            folder, driver = self._rays[0]
            detail = (
                f"Ray {driver} in {folder} hides {hidden}; Ray's workers may find the other one."
            )
            yield Concern("two-rays", detail, place=folder)
        for entry in _paths(self._host.environ.get("PYTHONPATH", "")):
            if not os.path.isabs(entry) and ray_version(Path(entry)):
                yield Concern(
                    "two-rays",
                    f"PYTHONPATH has {entry!r}, which is relative and contains a Ray: the workers run in another directory and do not find it.",
                )

    def _other_ray(self, folder: Path) -> str | None:
        """Return the version of the Ray in ``folder`` if it is not the driver's."""
        version = ray_version(folder)
        return None if version == self._rays[0][1] else version

    def rays_of_workers(self) -> Iterator[Concern]:
        if not self._rays:
            return
        environ, driver = self._host.environ, f"the driver has {self._rays[0][1]}"
        for variable, value in environ.items():
            if variable.startswith("RAY_") and value.lstrip().startswith("{"):
                with contextlib.suppress(ValueError):
                    config = parse_json(value)
                    runtime = _table(config.get("runtime_env", config))
                    yield from self._runtime_environment(variable, runtime, driver)
        for raylet in self._host.raylets:
            module = raylet.parents[4] if len(raylet.parents) > 4 else raylet
            if version := self._other_ray(module.parent):
                text = f"A Ray node of this machine runs Ray {version} from {module}; {driver}, and joins it if its address says so."
                yield Concern("workers-other-ray", text, place=module)
        if address := environ.get("RAY_ADDRESS"):
            text = f"RAY_ADDRESS={format_value(address)}: the Ray version of its nodes is unknown; {driver}."
            yield Concern("ray-cluster", text, counts=False)
        if command := _shebang(shutil.which("ray", path=environ.get("PATH"))):
            sites = command.parent.parent.glob("lib/python3*/site-packages")
            site = next(filter(ray_version, sites), None)
            if site and (version := self._other_ray(site)):
                text = f"`ray start` on this PATH starts Ray {version} of {command}; {driver}."
                yield Concern("other-ray-command", text, counts=False)

    def _runtime_environment(
        self, variable: str, runtime: dict[str, Any], driver: str
    ) -> Iterator[Concern]:
        """Yield the concerns about workers whose environment a variable of Ray sets."""
        for folder in map(Path, _paths(str(_table(runtime.get("env_vars")).get("PYTHONPATH", "")))):
            if version := self._other_ray(folder):
                text = f"{variable} puts {folder} before the workers' packages: Ray {version}; {driver}."
                yield Concern("workers-other-ray", text, place=folder)
        for packages in map(runtime.get, ("pip", "uv")):
            lines = packages.get("packages") if isinstance(packages, dict) else packages
            for line in lines if isinstance(lines, list) else ():
                wanted = requirement_of(str(line))
                is_ray = wanted and canonicalize_name(wanted.name) == "ray"
                if wanted and is_ray and not _meets(self._rays[0][1], wanted):
                    text = f"{variable} installs {wanted} for the workers; {driver}."
                    yield Concern("workers-other-ray", text)
        if unknown_sources := ", ".join(filter(runtime.__contains__, _OTHER_WORKERS)):
            text = f"{variable} sets {unknown_sources}: the workers' Ray cannot be determined; {driver}."
            yield Concern("workers-elsewhere", text, counts=False)

    def requirements(self) -> Iterator[Concern]:
        vllm = next(iter(self._builds), None)
        if vllm is None or vllm.place is None:
            return
        problems = []
        markers = {**self._interpreter.markers(), "extra": ""}
        for key, value in metadata(vllm.place):
            wanted = requirement_of(value) if key == "Requires-Dist" else None
            if wanted is None or (wanted.marker and not marker_holds(wanted.marker, markers)):
                continue
            package = self._get(canonicalize_name(wanted.name))
            if package is None:
                problems.append(f"{wanted.name} is missing (wants {wanted.specifier or 'any'})")
            elif not _meets(package.version, wanted):
                problems.append(f"{package.name} is {package.version} (wants {wanted.specifier})")
        if problems:
            more = f" and {len(problems) - MAX_NAMED} more" if len(problems) > MAX_NAMED else ""
            detail = f"{vllm.name} {vllm.version}: {', '.join(problems[:MAX_NAMED])}{more}."
            yield Concern("requirement-not-met", detail, place=vllm.place)

    def cuda(self) -> Iterator[Concern]:
        vllm, torch = next(iter(self._builds), None), self._get("torch")
        if vllm is None or vllm.name != "vllm" or "+cpu" in vllm.version or torch is None:
            return
        machine, python = self._host.machine, self._interpreter
        for concern in compare(vllm.version, torch.version, cuda_of(torch), machine):
            yield Concern(*concern, torch.place)
        if isinstance(machine, Machine):
            of_tools = tools(python.python, python.version, self._host.environ)
            for concern in (*modes(machine), *of_tools):
                yield Concern(*concern)

    def plugins(self) -> Iterator[Concern]:
        allowed = self._host.environ.get("VLLM_PLUGINS")
        platforms, general = (
            [
                f"{name} of {package.name} {package.version}"
                for package in self._distributions
                for name in _entry_points(package, group)
                if allowed is None or name in allowed.split(",")
            ]
            for group in ("vllm.platform_plugins", "vllm.general_plugins")
        )
        if len(platforms) > 1:
            detail = f"{', '.join(platforms)}: vLLM uses at most one active platform plug-in."
            yield Concern("two-platform-plugins", detail)
        elif platforms:
            detail = f"{platforms[0]} chooses the platform instead of vLLM."
            yield Concern("platform-plugin", detail, counts=False)
        if general:
            yield Concern("general-plugin", f"{', '.join(general[:MAX_NAMED])}.", counts=False)


def _entry_points(package: Package, group: str) -> Iterator[str]:
    text = peek(package.place / "entry_points.txt", 1024 * 1024) if package.place else ""
    section = ""
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[] \t")
        elif section == group and "=" in line:
            yield line.partition("=")[0].strip()


def _shebang(script: str | None) -> Path | None:
    """Return the interpreter of a script."""
    words = peek(Path(script), 500).partition("\n")[0].removeprefix("#!").split() if script else []
    return Path(words[0]) if words else None


def _meets(version: str, requirement: Requirement) -> bool:
    return not is_version(version) or requirement.specifier.contains(version, prereleases=True)


def _parent(package: Package) -> str:
    return str(package.place.parent) if package.place else "?"


def _paths(variable: str) -> Iterator[str]:
    return filter(None, variable.split(os.pathsep))


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
