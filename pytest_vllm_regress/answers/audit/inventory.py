"""The packages of an audit's target: an interpreter, an environment's directory, or a list."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...environments.installed import VLLM, Interpreter, Package


@dataclass(frozen=True)
class Inventory:
    """The packages of one target.

    ``source``: the target as the user named it.
    ``unpinned``: requirements without a version, by package.
    ``unread``: places of lines that are neither a requirement nor an option.
    ``release``: the release of vLLM, if the user named one instead of packages.
    ``left_out``: included files that were not read, and why.
    """

    source: str
    packages: tuple[Package, ...]
    unpinned: Mapping[str, str] = field(default_factory=dict)
    interpreter: Interpreter | None = None
    unread: tuple[str, ...] = ()
    release: str = ""
    left_out: tuple[str, ...] = ()

    @functools.cached_property
    def versions(self) -> dict[str, tuple[str, ...]]:
        """Versions by name. A lock may have several versions of a package."""
        by_name: dict[str, dict[str, None]] = {}
        for package in self.packages:
            by_name.setdefault(package.name, {})[package.version] = None
        return {name: tuple(versions) for name, versions in by_name.items()}

    @property
    def is_partial(self) -> bool:
        """Whether packages that it does not name may be installed where vLLM runs.

        That is so without vLLM, and for a list of direct requirements, which does not name torch
        although vLLM requires it.
        """
        if {*self.versions, *self.unpinned}.isdisjoint(VLLM):
            return True
        return self.interpreter is None and "torch" not in self.versions

    @classmethod
    def of(cls, interpreter: Interpreter, source: str) -> Inventory:
        """Return the packages that the interpreter would import."""
        return cls(source, interpreter.imported(), interpreter=interpreter)
