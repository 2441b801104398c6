"""Measure what is missing of a release, row by row, each on a server that nothing has happened to."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...engines.server import Server
from ...engines.spec import EngineSpec
from ...engines.standalone import Engines, bare_session
from ...errors import ChildError, NotAtWork, Unsupported, UsageError
from ...util.report import Report, Section, Table
from ...util.store import Store
from . import growth, health, shutdown
from .growth import MemoryRow
from .health import HealthRow, ServerState
from .shutdown import ShutdownRow

StateRow = HealthRow | ShutdownRow | MemoryRow
NOT_RUN, ABSENT = "not run", "n/a"


@dataclass(frozen=True)
class StateTable:
    """A table of a release: the names of its rows, and how one is measured.

    ``kind`` is its type.
    """

    names: Collection[str]
    spec_of: Callable[[str], EngineSpec]
    observe: Callable[[Server, str], StateRow]
    kind: Callable[..., StateRow]


TABLES = {
    "health": StateTable([*ServerState], health.spec_of, health.observe, HealthRow),
    "shutdown": StateTable([*shutdown.ROWS], shutdown.spec_of, shutdown.observe, ShutdownRow),
    "growth": StateTable([*growth.KINDS], growth.spec_of, growth.observe, MemoryRow),
}


@dataclass(frozen=True)
class ReleaseStates:
    """What was measured of a release, by state, by ending and by kind of request.

    ``day``: of the last measurement. ``device``: on which it was made.
    """

    vllm: str
    day: str = ""
    device: str = "sim"
    health: Mapping[str, HealthRow] = field(default_factory=dict)
    shutdown: Mapping[str, ShutdownRow] = field(default_factory=dict)
    growth: Mapping[str, MemoryRow] = field(default_factory=dict)

    def rows(self, table: str) -> Mapping[str, StateRow]:
        """Return the rows of a table that were measured."""
        rows: Mapping[str, StateRow] = getattr(self, table)
        return rows

    def missing(self, tables: Iterable[str] = TABLES) -> list[tuple[str, str]]:
        """Return table and name of each row that was not measured."""
        return [
            (table, name)
            for table in tables
            for name in TABLES[table].names
            if name not in self.rows(table)
        ]

    def summary(self, table: str, name: str) -> str:
        """Return the cell of a row in a table of releases."""
        row = self.rows(table).get(name)
        return NOT_RUN if row is None else ABSENT if row.absent else row.summary


def open_states(path: Path, *, fresh: bool = False) -> Store[ReleaseStates]:
    """Return releases by environment, kept in a file."""
    return Store(path, ReleaseStates, what="states of releases", fresh=fresh)


def measure_environment(
    name: str,
    release: ReleaseStates | None,
    tables: Collection[str],
    progress: Callable[[str], None],
) -> Iterator[ReleaseStates]:
    """Build an environment where it must be built, and measure what is missing of its release, as
    ``measure`` does."""
    with bare_session(progress, device="sim") as session:
        target = session.target(name)
        known = release or ReleaseStates(target.versions["vllm"])
        day = datetime.datetime.now(datetime.UTC).date().isoformat()
        engines = Engines(session, target, user="vllm-regress states")
        yield from measure(engines, known, day, progress, tables)


def measure(
    engines: Engines,
    release: ReleaseStates,
    day: str,
    progress: Callable[[str], None],
    tables: Collection[str] = TABLES,
) -> Iterator[ReleaseStates]:
    """Yield the release with one more row, until none is missing.

    A row that cannot be measured stays missing; ``progress`` gets the reason.
    """
    for table, name in release.missing(tables):
        kind = TABLES[table]
        try:
            server = engines(kind.spec_of(name), front="serve")
            try:
                row = kind.observe(server, name)
            finally:
                engines.discard(server)
        except Unsupported as refusal:
            row = kind.kind(absent=str(refusal))
        except (ChildError, NotAtWork, UsageError) as error:
            progress(f"vllm {release.vllm}: {table}, {name}: {str(error).splitlines()[0]}")
            continue
        rows: dict[str, Any] = {table: {**release.rows(table), name: row}}
        release = replace(release, day=day, **rows)
        progress(f"vllm {release.vllm}: {table}, {name}: {release.summary(table, name)}")
        yield release


def report(releases: Collection[ReleaseStates], tables: Iterable[str]) -> Report:
    """Return each table with a row for each of its names, and a column for each release."""
    header = ("", *(release.vllm for release in releases))
    sections = []
    for table in tables:
        rows = [
            (name, *(release.summary(table, name) for release in releases))
            for name in TABLES[table].names
        ]
        sections.append(Section(table.capitalize(), [Table(header, rows)]))
    return Report(sections=sections)
