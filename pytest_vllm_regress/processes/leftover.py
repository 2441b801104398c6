"""What an engine left behind after its end."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Leftover:
    """Something an engine left behind after its end: a process, a shared-memory segment or a Ray session; it has been removed."""

    what: str
    name: str

    def __str__(self) -> str:
        return f"{self.what} {self.name}"


def describe_leftovers(leftovers: Sequence[Leftover]) -> str:
    """One line per leftover."""
    return "\n".join(f"  {each}" for each in leftovers)
