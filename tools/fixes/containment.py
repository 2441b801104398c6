"""Find the first release that contains each change, using the sources in the wheels.

The lines that a change added are in a release that contains it, and the lines that it removed are
not. Later changes touch the same lines, so old changes are no longer visible. Therefore the lines
decide only where the history was cut for a release: before the cut, everything is contained. A
change after the cut is contained if its lines, which the release before did not have, are there:
it was picked for the release.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .changes import Change

Sources = Mapping[str, frozenset[str]]
"""The stripped lines of each file of a release."""
CUT = 0.3
"""Mean share that divides contained changes, whose lines later changes touch, from others."""
PICKED = 0.6
"""Share of the lines from which a change after the cut counts as contained: who picks a change for
a release may have to adapt it."""
JUMP = 0.4
"""By how much this share must have grown since the release before, so that lines that stood there
anyway do not count."""
MIN_LINES = 2
MIN_LENGTH = 20
"""Lines, and characters of a line, that a change needs so that chance does not put it in."""


def sources_of(files: Mapping[str, bytes]) -> Sources:
    """Return the lines of vLLM's modules in a wheel."""
    return {
        path: frozenset(line.strip() for line in content.decode(errors="replace").split("\n"))
        for path, content in files.items()
        if path.startswith("vllm/") and path.endswith(".py")
    }


def share(change: Change, sources: Sources) -> float | None:
    """Return the share of a change's lines that are as it left them; None if it has none."""
    count = agreeing = 0
    for side, wanted in ((change.added, True), (change.removed, False)):
        other = change.removed if wanted else change.added
        for path, lines in side.items():
            present = sources.get(path)
            if present is None:  # not yet there, or moved: absent lines say nothing
                present = frozenset()
                lines = lines if wanted else set()
            moved = lines - other.get(path, set())
            count += len(moved)
            agreeing += sum((line in present) == wanted for line in moved)
    return agreeing / count if count else None


def _is_distinct(change: Change) -> bool:
    lines = [line for lines in change.added.values() for line in lines if len(line) >= MIN_LENGTH]
    return len(lines) >= MIN_LINES


def cut(shares: Sequence[float | None]) -> int:
    """Return how many of the changes, in the order of their merge, lie before the cut."""
    best = total = 0.0
    position = 0
    for number, value in enumerate(shares, 1):
        total += 0.0 if value is None else value - CUT
        if total > best:
            best, position = total, number
    return position


class Containment:
    """The first release with each change, found release by release.

    ``firsts``: its number, with ``count`` releases before the first that is added; the number of
    all releases if none contains it.
    """

    def __init__(self, changes: Sequence[Change], count: int = 0) -> None:
        self._changes, self._count = changes, count
        self._found: dict[int, int] = {}
        self._before: dict[int, float | None] = {}

    @property
    def firsts(self) -> list[int]:
        return [self._found.get(at, self._count) for at in range(len(self._changes))]

    def begin_after(self, sources: Sources) -> None:
        """Compare the first release that is added with this one, which was counted before."""
        self._before = {at: share(change, sources) for at, change in enumerate(self._changes)}

    def add(self, sources: Sources) -> str:
        """Add the next release. Return the day of the last change before its cut; empty if the cut
        is that of the release before."""
        for at, first in list(self._found.items()):
            if first == self._count - 1 and self._is_picked(at, share(self._changes[at], sources)):
                self._found[at] = self._count  # it was left out of the release before
        waiting = [at for at in range(len(self._changes)) if at not in self._found]
        shares = {at: share(self._changes[at], sources) for at in waiting}
        position = cut([shares[at] for at in waiting])
        for place, at in enumerate(waiting):
            if place < position or self._is_picked(at, shares[at]):
                self._found[at] = self._count
        self._before = shares
        self._count += 1
        return self._changes[waiting[position - 1]].date if position else ""

    def _is_picked(self, at: int, value: float | None) -> bool:
        earlier = self._before.get(at)
        if value is None or earlier is None or not _is_distinct(self._changes[at]):
            return False
        return value >= PICKED and value - earlier >= JUMP
