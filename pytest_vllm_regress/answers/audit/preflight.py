"""Problems of an environment that no version of vLLM fixes: two versions of Ray, the wrong torch, a
driver that is too old.

All facts come from files and from NVML; no package of the interpreter is imported.
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

from ...engines.gpus.fit import compare, cuda_of, modes, tools
from ...engines.gpus.nvml import Machine, query_machine
from ...environments.installed import VLLM, VLLM_BUILDS, Interpreter, Package, metadata
from ...util.documents import parse_json
from ...util.files import peek
from ...util.validation import format_value
from ...util.versions import is_version, marker_holds, requirement_of
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
    """A problem, or (``counts`` False) a note.

    ``id`` is a key of ``CHECKS``, ``detail`` a sentence about this environment.
    """

    id: str
    detail: str
    counts: bool = True
    place: Path | None = None

    @property
    def title(self) -> str:
        return CHECKS[self.id][0]

    @property
    def advice(self) -> str:
        return CHECKS[self.id][1]

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--json``."""
        return {
            "id": self.id,
            "title": self.title,
            "found": self.detail,
            "advice": self.advice,
            "counts": self.counts,
            "place": str(self.place) if self.place else None,
        }


@dataclasses.dataclass(frozen=True)
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
    return Host(dict(os.environ), tuple(_raylets()), query_machine())


def preflight(interpreter: Interpreter, host: Host) -> tuple[Concern, ...]:
    """Return all concerns, problems before notes."""
    installed = _Installed(interpreter, interpreter.distributions())
    checks: Sequence[Callable[[_Installed, Host], Iterator[Concern]]] = (
        _two_builds, _shadowed, _two_rays, _other_workers, _requirements, _setuptools, _cuda, _plugins)  # fmt: skip
    return tuple(
        sorted(
            (concern for check in checks for concern in check(installed, host)),
            key=lambda concern: not concern.counts,
        )
    )


@dataclasses.dataclass(frozen=True)
class _Installed:
    interpreter: Interpreter
    distributions: tuple[Package, ...]

    def get(self, name: str) -> Package | None:
        """Return the distribution that is imported, the first one on the path."""
        return next((package for package in self.distributions if package.name == name), None)

    @property
    def vllm(self) -> Package | None:
        return next((package for name in VLLM if (package := self.get(name))), None)

    def rays(self) -> list[tuple[Path, str]]:
        """Return folder and version of every ``ray`` on the path; the first one is imported."""
        return [
            (folder, version)
            for folder in self.interpreter.path
            if (version := ray_version(folder))
        ]


def ray_version(folder: Path) -> str | None:
    """Return the version of the package ``ray`` in ``folder``; None if there is none."""
    module = folder / "ray"
    if not (module / "__init__.py").is_file():
        return None
    match = re.search(
        r"^version[ \t]*=[ \t]*['\"]([^'\"\n]{1,100})",
        peek(module / "_version.py", 64 * 1024),
        re.M,
    )
    return match[1] if match else "?"


def _two_builds(installed: _Installed, host: Host) -> Iterator[Concern]:
    builds = [package for name in VLLM if (package := installed.get(name))]
    if len(builds) > 1:
        names = " and ".join(f"{package.name} {package.version}" for package in builds)
        yield Concern(
            "two-vllms",
            f"{names} are both installed: the second one overwrote files of the first.",
            place=builds[1].place,
        )


def _shadowed(installed: _Installed, host: Host) -> Iterator[Concern]:
    for name in (*_SHADOWED, *VLLM_BUILDS):
        first = installed.get(name)
        others = [
            p
            for p in installed.distributions
            if first and p.name == name and p.version != first.version
        ]
        hidden = sorted({f"{package.version} in {_parent(package)}" for package in others})
        if first and hidden:
            yield Concern(
                "shadowed-package",
                f"{name} {first.version} in {_parent(first)} hides {', '.join(hidden)}.",
                place=first.place,
            )


def _two_rays(installed: _Installed, host: Host) -> Iterator[Concern]:
    rays = installed.rays()
    hidden = [f"{version} in {folder}" for folder, version in rays[1:] if version != rays[0][1]]
    if hidden:
        folder, version = rays[0]
        yield Concern(
            "two-rays",
            f"Ray {version} in {folder} hides {', '.join(hidden)}; Ray's workers may find the other one.",
            place=folder,
        )
    for entry in filter(None, host.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if not os.path.isabs(entry) and ray_version(Path(entry)):
            yield Concern(
                "two-rays",
                f"PYTHONPATH has {entry!r}, which is relative and contains a Ray: the workers run in another directory and do not find it.",
            )


def _other_workers(installed: _Installed, host: Host) -> Iterator[Concern]:
    rays = installed.rays()
    if not rays:
        return
    driver = rays[0][1]
    for variable, runtime in _runtime_environments(host.environ):
        for folder in filter(
            None, str(_table(runtime.get("env_vars")).get("PYTHONPATH", "")).split(os.pathsep)
        ):
            version = ray_version(Path(folder))
            if version and version != driver:
                text = f"{variable} puts {folder} before the workers' packages: Ray {version}; the driver has {driver}."
                yield Concern("workers-other-ray", text, place=Path(folder))
        for requirement in _requirements_of(runtime):
            if canonicalize_name(requirement.name) == "ray" and not _meets(driver, requirement):
                yield Concern(
                    "workers-other-ray",
                    f"{variable} installs {requirement} for the workers; the driver has {driver}.",
                )
        unknown_sources = ", ".join(key for key in _OTHER_WORKERS if key in runtime)
        if unknown_sources:
            yield Concern(
                "workers-elsewhere",
                f"{variable} sets {unknown_sources}: the workers' Ray cannot be determined; the driver has {driver}.",
                counts=False,
            )
    for raylet in host.raylets:
        module = raylet.parents[4] if len(raylet.parents) > 4 else raylet
        version = ray_version(module.parent)
        if version and version != driver:
            text = f"A Ray node of this machine runs Ray {version} from {module}; the driver has {driver}, and joins it if its address says so."
            yield Concern("workers-other-ray", text, place=module)
    address = host.environ.get("RAY_ADDRESS")
    if address:
        yield Concern(
            "ray-cluster",
            f"RAY_ADDRESS={format_value(address)}: the Ray version of its nodes is unknown; the driver has {driver}.",
            counts=False,
        )
    command = _shebang(shutil.which("ray", path=host.environ.get("PATH")))
    command_version = (
        next(
            (
                v
                for site in command.parent.parent.glob("lib/python3*/site-packages")
                if (v := ray_version(site))
            ),
            None,
        )
        if command
        else None
    )
    if command_version and command_version != driver:
        yield Concern(
            "other-ray-command",
            f"`ray start` on this PATH starts Ray {command_version} of {command}; the driver has {driver}.",
            counts=False,
        )


def _requirements(installed: _Installed, host: Host) -> Iterator[Concern]:
    vllm = installed.vllm
    if vllm is None or vllm.place is None:
        return
    problems = []
    for requirement in _wanted(vllm.place, {**installed.interpreter.markers(), "extra": ""}):
        package = installed.get(canonicalize_name(requirement.name))
        if package is None:
            problems.append(
                f"{requirement.name} is missing (wants {requirement.specifier or 'any'})"
            )
        elif not _meets(package.version, requirement):
            problems.append(f"{package.name} is {package.version} (wants {requirement.specifier})")
    if problems:
        more = f" and {len(problems) - MAX_NAMED} more" if len(problems) > MAX_NAMED else ""
        yield Concern(
            "requirement-not-met",
            f"{vllm.name} {vllm.version}: {', '.join(problems[:MAX_NAMED])}{more}.",
            place=vllm.place,
        )


def _setuptools(installed: _Installed, host: Host) -> Iterator[Concern]:
    triton = installed.get("triton")
    if (
        triton
        and _meets(triton.version, Requirement("triton<3.3"))
        and installed.get("setuptools") is None
    ):
        yield Concern(
            "no-setuptools",
            f"triton {triton.version} imports setuptools without requiring it, and setuptools is not installed.",
            place=triton.place,
        )


def _cuda(installed: _Installed, host: Host) -> Iterator[Concern]:
    vllm, torch = installed.vllm, installed.get("torch")
    if (
        vllm is not None
        and vllm.name == "vllm"
        and "+cpu" not in vllm.version
        and torch is not None
    ):
        for name, text, counts in compare(
            vllm.version, torch.version, cuda_of(torch), host.machine
        ):
            yield Concern(name, text, counts, torch.place)
        if isinstance(host.machine, Machine):
            python = installed.interpreter
            for name, text, counts in (
                *modes(host.machine),
                *tools(python.python, python.version, host.environ),
            ):
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
        yield Concern(
            "two-platform-plugins",
            f"{', '.join(platforms)}: vLLM uses at most one active platform plug-in.",
        )
    elif platforms:
        yield Concern(
            "platform-plugin", f"{platforms[0]} chooses the platform instead of vLLM.", counts=False
        )
    if general:
        yield Concern("general-plugin", f"{', '.join(general[:MAX_NAMED])}.", counts=False)


def _wanted(place: Path, markers: Mapping[str, str]) -> Iterator[Requirement]:
    """Yield the requirements of a distribution that apply under ``markers``."""
    for key, value in metadata(place):
        requirement = requirement_of(value) if key == "Requires-Dist" else None
        if requirement is not None and (
            requirement.marker is None or marker_holds(requirement.marker, markers)
        ):
            yield requirement


def _entry_points(package: Package) -> Iterator[tuple[str, str]]:
    group = ""
    for line in (
        peek(package.place / "entry_points.txt", 1024 * 1024).splitlines() if package.place else ()
    ):
        if line.startswith("["):
            group = line.strip("[] \t")
        elif group in _PLUGINS and "=" in line:
            yield group, line.partition("=")[0].strip()


def _runtime_environments(environ: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the runtime environments of workers that are set by Ray's environment variables."""
    for name, value in environ.items():
        if name.startswith("RAY_") and value.lstrip().startswith("{"):
            with contextlib.suppress(ValueError):
                config = parse_json(value)
                yield name, _table(config.get("runtime_env", config))


def _requirements_of(runtime: Mapping[str, Any]) -> Iterator[Requirement]:
    for key in ("pip", "uv"):
        packages = runtime.get(key)
        lines = packages.get("packages") if isinstance(packages, dict) else packages
        for line in lines if isinstance(lines, list) else ():
            requirement = requirement_of(str(line))
            if requirement is not None:
                yield requirement


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


def _meets(version: str, requirement: Requirement) -> bool:
    return not is_version(version) or requirement.specifier.contains(version, prereleases=True)


def _parent(package: Package) -> str:
    return str(package.place.parent) if package.place else "?"


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
