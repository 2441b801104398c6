"""An environment ready for use, and what can be said of one that is not built yet."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from ..environments.installed import Installed, read_installed
from ..environments.overlay import about
from ..environments.sources import names_interpreter
from ..errors import UsageError
from . import device as devices
from .device import choose

RUNNING_INTERPRETER = "this interpreter"
BORROWED = "vllm-build"
"""Beside the versions of an environment made from source: what is not the commit's own."""


@dataclasses.dataclass(frozen=True)
class Target:
    """An environment ready for use: its name, interpreter, device, and what is installed."""

    name: str
    python: Path
    device: str
    installed: Installed

    @property
    def versions(self) -> dict[str, str]:
        """Versions by distribution name; ``vllm`` is always there when some build of vLLM is. What of source code is borrowed stands beside."""
        versions = dict(self.installed.packages)
        made = about(self.python)
        if made is not None and made.remarks:
            versions[BORROWED] = made.remarks
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
        named = ", ".join(f"{name} {versions[name]}" for name in (*shown, BORROWED) if name in versions)
        return f"{self.name}: {named}, python {self.installed.python}; device {self.device} ({devices.DESCRIPTIONS[self.device]})"


def named_interpreter(name: str) -> Path | None:
    """The interpreter that a name says itself: the running one, or a path. None for the name of an environment."""
    if name == RUNNING_INTERPRETER:
        return Path(sys.executable)
    if names_interpreter(name):
        path = Path(name).expanduser()
        if not path.exists():
            raise UsageError(
                f"--vllm-env {name}: no such interpreter. Give an interpreter's path or an environment's name"
            )
        return path.absolute()
    return None


def inspect(name: str, python: Path, device: str) -> Target:
    """The target that ``python`` is. Raises ``UsageError`` where it has nothing that a case can be about."""
    installed = read_installed(python)
    if not installed.usable:
        raise UsageError(
            f"the interpreter {python} ({name}) has neither vLLM nor a structured-output package. Install one there, "
            "or name an environment: `vllm-regress env list` shows them"
        )
    return Target(name, python, choose(device, installed), installed)


def preview(name: str, device: str) -> str:
    """One line about the environment; says so when it is not built yet."""
    python = _interpreter(name)
    if python is None:
        return f"{name}: not built yet; it is built before its first test"
    return inspect(name, python, device).describe()


def _interpreter(name: str) -> Path | None:
    if named := named_interpreter(name):
        return named
    from ..environments.cache import EnvironmentCache
    from ..environments.names import resolve

    return EnvironmentCache().built(resolve(name))
