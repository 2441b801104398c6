"""Problems of an environment that no version of vLLM fixes: two versions of Ray, the wrong torch, a
driver that is too old.

All facts come from files and from NVML; no package of the interpreter is imported.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ...engines.gpus.fit import compare, cuda_of, modes, tools
from ...engines.gpus.nvml import Machine, query_machine
from ...environments.installed import VLLM, VLLM_BUILDS, Interpreter, Package, metadata
from ...util import codec
from ...util.documents import parse_json
from ...util.files import peek
from ...util.paths import DATA
from ...util.validation import format_value
from ...util.versions import is_version, marker_holds, requirement_of

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
        return {
            "id": self.id,
            "title": self.title,
            "found": self.detail,
            "advice": self.advice,
            "counts": self.counts,
            "place": str(self.place) if self.place else None,
        }


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
    installed = _Installed(interpreter)
    checks: Sequence[Callable[[_Installed, Host], Iterator[Concern]]] = (
        _two_builds, _shadowed, _two_rays, _other_workers, _requirements, _setuptools, _cuda, _plugins)  # fmt: skip
    concerns = (concern for check in checks for concern in check(installed, host))
    return tuple(sorted(concerns, key=lambda concern: not concern.counts))


class _Installed:
    """What an interpreter imports: of each package the first one on the path.

    ``rays``: folder and version of every ``ray`` on the path; the first one is imported.
    """

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self.distributions = interpreter.distributions()
        self.builds = [package for name in VLLM if (package := self.get(name))]
        self.vllm = self.builds[0] if self.builds else None
        versions = ((folder, ray_version(folder)) for folder in interpreter.path)
        self.rays = [(folder, version) for folder, version in versions if version]

    def get(self, name: str) -> Package | None:
        return next((package for package in self.distributions if package.name == name), None)


def ray_version(folder: Path) -> str | None:
    """Return the version of the package ``ray`` in ``folder``; None if there is none."""
    module = folder / "ray"
    if not (module / "__init__.py").is_file():
        return None
    pattern = r"^version[ \t]*=[ \t]*['\"]([^'\"\n]{1,100})"
    match = re.search(pattern, peek(module / "_version.py", 64 * 1024), re.M)
    return match[1] if match else "?"


def _two_builds(installed: _Installed, host: Host) -> Iterator[Concern]:
    if len(installed.builds) > 1:
        names = " and ".join(f"{package.name} {package.version}" for package in installed.builds)
        detail = f"{names} are both installed: the second one overwrote files of the first."
        yield Concern("two-vllms", detail, place=installed.builds[1].place)


def _shadowed(installed: _Installed, host: Host) -> Iterator[Concern]:
    for name in (*_SHADOWED, *VLLM_BUILDS):
        first = installed.get(name)
        hidden = {
            f"{package.version} in {_parent(package)}"
            for package in installed.distributions
            if first and package.name == name and package.version != first.version
        }
        if first and hidden:
            detail = (
                f"{name} {first.version} in {_parent(first)} hides {', '.join(sorted(hidden))}."
            )
            yield Concern("shadowed-package", detail, place=first.place)


def _two_rays(installed: _Installed, host: Host) -> Iterator[Concern]:
    if installed.rays:
        (folder, driver), *others = installed.rays
        hidden = ", ".join(f"{version} in {path}" for path, version in others if version != driver)
        if hidden:
            detail = (
                f"Ray {driver} in {folder} hides {hidden}; Ray's workers may find the other one."
            )
            yield Concern("two-rays", detail, place=folder)
    for entry in _paths(host.environ.get("PYTHONPATH", "")):
        if not os.path.isabs(entry) and ray_version(Path(entry)):
            yield Concern(
                "two-rays",
                f"PYTHONPATH has {entry!r}, which is relative and contains a Ray: the workers run in another directory and do not find it.",
            )


def _other_workers(installed: _Installed, host: Host) -> Iterator[Concern]:
    if not installed.rays:
        return
    driver = installed.rays[0][1]
    for variable, runtime in _runtime_environments(host.environ):
        yield from _runtime_concerns(variable, runtime, driver)
    for raylet in host.raylets:
        module = raylet.parents[4] if len(raylet.parents) > 4 else raylet
        version = ray_version(module.parent)
        if version and version != driver:
            text = f"A Ray node of this machine runs Ray {version} from {module}; the driver has {driver}, and joins it if its address says so."
            yield Concern("workers-other-ray", text, place=module)
    if address := host.environ.get("RAY_ADDRESS"):
        text = f"RAY_ADDRESS={format_value(address)}: the Ray version of its nodes is unknown; the driver has {driver}."
        yield Concern("ray-cluster", text, counts=False)
    if command := _shebang(shutil.which("ray", path=host.environ.get("PATH"))):
        sites = command.parent.parent.glob("lib/python3*/site-packages")
        version = next(filter(None, map(ray_version, sites)), None)
        if version and version != driver:
            text = f"`ray start` on this PATH starts Ray {version} of {command}; the driver has {driver}."
            yield Concern("other-ray-command", text, counts=False)


def _runtime_environments(environ: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the runtime environments of workers that are set by Ray's environment variables."""
    for name, value in environ.items():
        if name.startswith("RAY_") and value.lstrip().startswith("{"):
            with contextlib.suppress(ValueError):
                config = parse_json(value)
                yield name, _table(config.get("runtime_env", config))


def _runtime_concerns(variable: str, runtime: dict[str, Any], driver: str) -> Iterator[Concern]:
    for folder in map(Path, _paths(str(_table(runtime.get("env_vars")).get("PYTHONPATH", "")))):
        version = ray_version(folder)
        if version and version != driver:
            text = f"{variable} puts {folder} before the workers' packages: Ray {version}; the driver has {driver}."
            yield Concern("workers-other-ray", text, place=folder)
    for key in ("pip", "uv"):
        packages = runtime.get(key)
        lines = packages.get("packages") if isinstance(packages, dict) else packages
        for requirement in map(requirement_of, map(str, lines if isinstance(lines, list) else ())):
            is_ray = requirement is not None and canonicalize_name(requirement.name) == "ray"
            if requirement is not None and is_ray and not _meets(driver, requirement):
                text = (
                    f"{variable} installs {requirement} for the workers; the driver has {driver}."
                )
                yield Concern("workers-other-ray", text)
    if unknown_sources := ", ".join(filter(runtime.__contains__, _OTHER_WORKERS)):
        text = f"{variable} sets {unknown_sources}: the workers' Ray cannot be determined; the driver has {driver}."
        yield Concern("workers-elsewhere", text, counts=False)


def _requirements(installed: _Installed, host: Host) -> Iterator[Concern]:
    vllm = installed.vllm
    if vllm is None or vllm.place is None:
        return
    problems = []
    for requirement in _wanted(vllm.place, {**installed.interpreter.markers(), "extra": ""}):
        package = installed.get(canonicalize_name(requirement.name))
        wanted = requirement.specifier
        if package is None:
            problems.append(f"{requirement.name} is missing (wants {wanted or 'any'})")
        elif not _meets(package.version, requirement):
            problems.append(f"{package.name} is {package.version} (wants {wanted})")
    if problems:
        more = f" and {len(problems) - MAX_NAMED} more" if len(problems) > MAX_NAMED else ""
        detail = f"{vllm.name} {vllm.version}: {', '.join(problems[:MAX_NAMED])}{more}."
        yield Concern("requirement-not-met", detail, place=vllm.place)


def _wanted(place: Path, markers: Mapping[str, str]) -> Iterator[Requirement]:
    """Yield the requirements of a distribution that apply under ``markers``."""
    for key, value in metadata(place):
        requirement = requirement_of(value) if key == "Requires-Dist" else None
        if requirement is not None and (
            requirement.marker is None or marker_holds(requirement.marker, markers)
        ):
            yield requirement


def _setuptools(installed: _Installed, host: Host) -> Iterator[Concern]:
    triton = installed.get("triton")
    if triton is None or installed.get("setuptools") is not None:
        return
    if _meets(triton.version, Requirement("triton<3.3")):
        detail = f"triton {triton.version} imports setuptools without requiring it, and setuptools is not installed."
        yield Concern("no-setuptools", detail, place=triton.place)


def _cuda(installed: _Installed, host: Host) -> Iterator[Concern]:
    vllm, torch, machine = installed.vllm, installed.get("torch"), host.machine
    if vllm is None or vllm.name != "vllm" or "+cpu" in vllm.version or torch is None:
        return
    for name, text, counts in compare(vllm.version, torch.version, cuda_of(torch), machine):
        yield Concern(name, text, counts, torch.place)
    if isinstance(machine, Machine):
        python = installed.interpreter
        of_tools = tools(python.python, python.version, host.environ)
        for name, text, counts in (*modes(machine), *of_tools):
            yield Concern(name, text, counts)


def _plugins(installed: _Installed, host: Host) -> Iterator[Concern]:
    allowed = host.environ.get("VLLM_PLUGINS")
    by_group: dict[str, list[str]] = {group: [] for group in _PLUGINS}
    for package in installed.distributions:
        for group, name in _entry_points(package):
            if allowed is None or name in allowed.split(","):
                by_group[group].append(f"{name} of {package.name} {package.version}")
    platforms, general = by_group.values()
    if len(platforms) > 1:
        detail = f"{', '.join(platforms)}: vLLM uses at most one active platform plug-in."
        yield Concern("two-platform-plugins", detail)
    elif platforms:
        detail = f"{platforms[0]} chooses the platform instead of vLLM."
        yield Concern("platform-plugin", detail, counts=False)
    if general:
        yield Concern("general-plugin", f"{', '.join(general[:MAX_NAMED])}.", counts=False)


def _entry_points(package: Package) -> Iterator[tuple[str, str]]:
    text = peek(package.place / "entry_points.txt", 1024 * 1024) if package.place else ""
    group = ""
    for line in text.splitlines():
        if line.startswith("["):
            group = line.strip("[] \t")
        elif group in _PLUGINS and "=" in line:
            yield group, line.partition("=")[0].strip()


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
