"""Measures what a release's record lacks, row by row, each on a server that nothing has happened
to."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from ...engines.server import Server
from ...engines.spec import EngineSpec
from ...engines.standalone import Engines, bare_session
from ...errors import ChildError, NotAtWork, Unsupported, UsageError
from . import health, memory, shutdown
from .health import HealthRow, State
from .memory import KINDS, MemoryRow
from .shutdown import ROWS, ShutdownRow

HEALTH, SHUTDOWN, GROWTH = "health", "shutdown", "growth"
TABLES = (HEALTH, SHUTDOWN, GROWTH)


@dataclasses.dataclass(frozen=True)
class Release:
    """What was measured of a release, by state, by ending and by kind of request.

    ``day``: of the last measurement. ``device``: on which it was made.
    """

    vllm: str
    day: str = ""
    device: str = "sim"
    health: Mapping[str, HealthRow] = dataclasses.field(default_factory=dict)
    shutdown: Mapping[str, ShutdownRow] = dataclasses.field(default_factory=dict)
    growth: Mapping[str, MemoryRow] = dataclasses.field(default_factory=dict)

    def missing(self, tables: Collection[str] = TABLES) -> list[tuple[str, str]]:
        """Return table and name of each row that was not measured."""
        return [
            (table, name)
            for table, names, rows in (
                (HEALTH, [*State], self.health),
                (SHUTDOWN, [*ROWS], self.shutdown),
                (GROWTH, [*KINDS], self.growth),
            )
            for name in names
            if table in tables and name not in rows
        ]

    def without(self, tables: Collection[str]) -> Release:
        """Return the release without what was measured for these tables."""
        nothing: dict[str, Any] = {table: {} for table in tables}
        return dataclasses.replace(self, **nothing)


def measure_environment(
    name: str, release: Release | None, tables: Collection[str], progress: Callable[[str], None]
) -> Iterator[Release]:
    """Build an environment where it must be built, and measure what is missing of its release, as
    ``measure`` does."""
    with bare_session(progress, device="sim") as session:
        target = session.target(name)
        known = release or Release(target.versions["vllm"])
        day = datetime.datetime.now(datetime.UTC).date().isoformat()
        yield from measure(
            Engines(session, target, user="vllm-regress states"), known, day, progress, tables
        )


def measure(
    engines: Engines,
    release: Release,
    day: str,
    progress: Callable[[str], None],
    tables: Collection[str] = TABLES,
) -> Iterator[Release]:
    """Yield the release with one more row, until none is missing.

    A row that cannot be measured stays missing; ``progress`` gets the reason.
    """
    for table, name in release.missing(tables):
        try:
            row: Any = _ROWS[table](engines, name)
        except (ChildError, NotAtWork, UsageError) as error:
            progress(f"vllm {release.vllm}: {table}, {name}: {str(error).splitlines()[0]}")
            continue
        rows: dict[str, Any] = {table: {**getattr(release, table), name: row}}
        release = dataclasses.replace(release, day=day, **rows)
        progress(f"vllm {release.vllm}: {table}, {name}: {row}")
        yield release


def _health(engines: Engines, name: str) -> HealthRow:
    state = State(name)
    try:
        with _server(engines, health.spec_of(state)) as server:
            return health.observe(server, state)
    except Unsupported as refusal:
        return HealthRow(absent=str(refusal))


def _shutdown(engines: Engines, name: str) -> ShutdownRow:
    ending, streaming = ROWS[name]
    try:
        with _server(engines, ending.spec) as server:
            return shutdown.observe(server, ending, streaming=streaming)
    except Unsupported as refusal:
        return ShutdownRow(absent=str(refusal))


def _growth(engines: Engines, kind: str) -> MemoryRow:
    try:
        with _server(engines, memory.SPEC) as server:
            return memory.observe(server, kind)
    except Unsupported as refusal:
        return MemoryRow(absent=str(refusal))


_ROWS: Mapping[str, Callable[[Engines, str], Any]] = {
    HEALTH: _health,
    SHUTDOWN: _shutdown,
    GROWTH: _growth,
}


@contextlib.contextmanager
def _server(engines: Engines, spec: EngineSpec) -> Iterator[Server]:
    server = engines(spec, front="serve")
    try:
        yield server
    finally:
        engines.discard(server)
