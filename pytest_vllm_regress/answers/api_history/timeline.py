"""When a name had which definition: changes by the number of the release, and how a release is
appended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping

Timeline = list[int | str | None]
"""Number of a release and the definition from then on, in turn:

``[3, "def()", 9, None]``; None means that the name is gone.
"""
Table = MutableMapping[str, Timeline]


def definition_at(timeline: Timeline, release: int) -> str | None:
    """Return the definition in that release; None if the name does not exist there."""
    definition: int | str | None = None
    for position in range(0, len(timeline), 2):
        start = timeline[position]
        assert isinstance(start, int)
        if start > release:
            break
        definition = timeline[position + 1]
    assert not isinstance(definition, int)
    return definition


def append(table: Table, release: int, definitions: Mapping[str, str]) -> None:
    """Add what changed in ``release``, which follows all that are in the table."""
    for name, definition in definitions.items():
        timeline = table.setdefault(name, [])
        if not timeline or timeline[-1] != definition:
            timeline += [release, definition]
    for name, timeline in table.items():
        if name not in definitions and timeline[-1] is not None:
            timeline += [release, None]


def releases_with(timeline: Timeline, count: int) -> set[int]:
    """Return the numbers of the releases, of ``count``, in which the name exists."""
    return {number for start, end, _ in intervals(timeline, count) for number in range(start, end)}


def intervals(timeline: Timeline, count: int) -> Iterator[tuple[int, int, str]]:
    """Yield first release, release after the last, and definition of each period in which the name
    exists."""
    for position in range(0, len(timeline), 2):
        start, definition = timeline[position], timeline[position + 1]
        end = timeline[position + 2] if position + 2 < len(timeline) else count
        if isinstance(definition, str) and isinstance(start, int) and isinstance(end, int):
            yield start, end, definition
