"""What one target of an audit has: packages of an interpreter, of an environment's folder, or of a list."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ..environments.installed import Interpreter, Package, open_interpreter


@dataclasses.dataclass(frozen=True)
class Inventory:
    """What one target has. ``source`` is how the user named it; ``unpinned``: requirements that name no version, by package.

    ``unread``: where the lines stand that are neither a requirement nor an option.
    """

    source: str
    packages: tuple[Package, ...]
    unpinned: Mapping[str, str] = dataclasses.field(default_factory=lambda: MappingProxyType({}))
    interpreter: Interpreter | None = None
    unread: tuple[str, ...] = ()

    @property
    def versions(self) -> dict[str, tuple[str, ...]]:
        """Versions by name; several where a lock holds several."""
        found: dict[str, dict[str, None]] = {}
        for package in self.packages:
            found.setdefault(package.name, {})[package.version] = None
        return {name: tuple(versions) for name, versions in found.items()}

    def find(self, name: str, version: str) -> Package | None:
        """The package of that name and version."""
        return next((each for each in self.packages if (each.name, each.version) == (name, version)), None)

    @classmethod
    def of(cls, interpreter: Interpreter, source: str) -> Inventory:
        """What the interpreter would import."""
        return cls(source, interpreter.imported(), interpreter=interpreter)


def inventory_of(python: Path, source: str | None = None) -> Inventory:
    """What ``python``, an interpreter that is started, would import."""
    return Inventory.of(open_interpreter(python), source or str(python))
