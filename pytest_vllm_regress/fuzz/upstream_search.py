"""What upstream knows of a finding."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Upstream:
    """What upstream knows of a finding. ``words``: what was searched for. ``reports``: reports of it; empty if none was found."""

    words: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()
