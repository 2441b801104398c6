"""An environment ready for use, and what can be said of one that is not built yet."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

from ..errors import UsageError
from ..processes.agent import Installed
from . import device as devices
from .device import choose

RUNNING_INTERPRETER = "this interpreter"


@dataclasses.dataclass(frozen=True)
class Target:
    """An environment ready for use: its name, interpreter, device, and what is installed."""

    name: str
    python: Path
    device: str
    installed: Installed

    @property
    def versions(self) -> dict[str, str]:
        """Versions by distribution name; ``vllm`` is always there when some build of vLLM is."""
        versions = dict(self.installed.packages)
        if self.installed.vllm_distribution:
            versions["vllm"] = versions[self.installed.vllm_distribution]
        return versions

    def describe(self) -> str:
        """One line: versions that matter and the device."""
        shown = (
            "vllm",
            "lm-format-enforcer",
            "xgrammar",
            "llguidance",
            "outlines-core",
            "torch",
            "transformers",
            "ray",
        )
        versions = self.versions
        named = ", ".join(f"{name} {versions[name]}" for name in shown if name in versions)
        return f"{self.name}: {named}, python {self.installed.python}; device {self.device} ({devices.DESCRIPTIONS[self.device]})"


def named_interpreter(name: str) -> Path | None:
    """The interpreter that a name says itself: the running one, or a path. None for the name of an environment."""
    if name == RUNNING_INTERPRETER:
        return Path(sys.executable)
    if "/" in name:
        path = Path(name).expanduser()
        if not path.exists():
            raise UsageError(
                f"--vllm-env {name}: no such interpreter. Give an interpreter's path or an environment's name"
            )
        return path.absolute()
    return None


_QUERY = "import sysconfig; print(sysconfig.get_path('purelib')); print(sysconfig.get_path('platlib'))"


def preview(name: str, device: str) -> str:
    """One line about the environment; says so when it is not built yet."""
    python = _interpreter(name)
    if python is None:
        return f"{name}: not built yet; it is built before its first test"
    installed = read_installed(python)
    if not installed.usable:
        raise UsageError(
            f"the interpreter {python} ({name}) has neither vLLM nor a structured-output package. Install one there, "
            "or name an environment: `vllm-regress env list` shows them"
        )
    return Target(name, python, choose(device, installed), installed).describe()


def read_installed(python: Path) -> Installed:
    """Distributions in an interpreter's site-packages, read from the names of their metadata directories."""
    packages: dict[str, str] = {}
    for site in _site_packages(python):
        for entry in site.glob("*.dist-info"):
            name, _, version = entry.name.removesuffix(".dist-info").partition("-")
            packages.setdefault(name.lower().replace("_", "-"), version)
    minor = next((p.name.removeprefix("python") for p in (python.parent.parent / "lib").glob("python3.*")), "")
    return Installed(str(python), minor or "?", packages)


def _site_packages(python: Path) -> list[Path]:
    beside = list((python.parent.parent / "lib").glob("python3.*/site-packages"))
    if beside and (python.parent.parent / "pyvenv.cfg").exists():
        return beside
    try:
        out = subprocess.run(
            [python, "-c", _QUERY], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"{python} is not a Python interpreter that runs: {error}") from None
    return [Path(line) for line in dict.fromkeys(out.split())]


def _interpreter(name: str) -> Path | None:
    if named := named_interpreter(name):
        return named
    from ..environments.cache import EnvironmentCache
    from ..environments.recipes import resolve

    return EnvironmentCache().built(resolve(name))
