"""The pages of the record of states: health, shutdown and growth of memory per release."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from pytest_vllm_regress.surveys.states import growth, health, requests, shutdown
from pytest_vllm_regress.surveys.states.health import HEALTH, HEALTHY, PROBES, ServerState
from pytest_vllm_regress.surveys.states.measure import ABSENT, NOT_RUN, TABLES, ReleaseStates
from pytest_vllm_regress.target_site.vllm_regress_target.sim import pacing
from pytest_vllm_regress.util import codec
from pytest_vllm_regress.util.report import Table

from . import page as pages

_UPSTREAM = "https://github.com/vllm-project/vllm/issues/"
SIGNS: dict[str, Callable[[Any], bool]] = {
    "healthy without an answer": lambda row: (
        row.answers[HEALTH] == HEALTHY and row.answers[health.TOKEN] != HEALTHY
    ),
    "silent": lambda row: row.answers[HEALTH] == requests.SILENT,
    "stream cut": lambda row: row.exit != requests.RUNS and row.stream != requests.COMPLETE,
    "runs": lambda row: row.exit == requests.RUNS,
    "orphans": lambda row: not {"core", "worker"}.isdisjoint(row.left),
}


@dataclass(frozen=True)
class KnownState:
    """An entry of ``known_states.toml``."""

    table: str
    text: str
    rows: str
    sign: str
    case: str = ""
    upstream: int = 0

    def shows(self, name: str, row: Any) -> bool:
        """Return whether a row shows this failure."""
        return bool(re.fullmatch(self.rows, name)) and SIGNS[self.sign](row)

    @property
    def link(self) -> str:
        """Markdown of a link to the case or the report, from docs/generated."""
        if self.case:
            return f"[{self.case}](../../cases/{self.case}/README.md)"
        return f"[vllm-project/vllm#{self.upstream}]({_UPSTREAM}{self.upstream})"


KNOWN = codec.load(
    dict[str, list[KnownState]],
    Path(__file__).with_name("known_states.toml"),
    64 * 1024,
    what="the known failures",
)["known"]


def page(table: str, releases: Iterable[ReleaseStates]) -> str:
    """Return the page of a table, newest release first.

    It has the releases of which some of its rows were measured.
    """
    measured = [release for release in releases if release.rows(table)]
    measured.sort(key=lambda release: Version(release.vllm), reverse=True)
    names = TABLES[table].names
    rows = [(r.vllm, *(r.summary(table, name) for name in names)) for r in measured]
    return pages.render(
        table,
        overview=Table(("vLLM", *names), rows),
        known=list(_known(table, measured)),
        sections=[_section(table, name, measured) for name in names],
        growth=growth,
        requests=requests,
        shutdown=shutdown,
        pacing=pacing,
    )


def _section(table: str, name: str, releases: Iterable[ReleaseStates]) -> dict[str, object]:
    """Return what the page says of one row: a table of the releases, and why some have no such
    row."""
    header = ("vLLM", *_HEADERS[table](name))
    rows: list[tuple[str, ...]] = []
    absent: dict[str, list[str]] = defaultdict(list)
    for release in releases:
        row = release.rows(table).get(name)
        if row is not None and not row.absent:
            rows += [(release.vllm, *cells) for cells in _CELLS[table](name, row)]
            continue
        rows.append((release.vllm, ABSENT if row else NOT_RUN, *[""] * (len(header) - 2)))
        if row is not None:
            reason = row.absent.replace(f"vLLM {release.vllm}", "this vLLM")
            absent[reason].append(release.vllm)
    return {
        "title": name[0].upper() + name[1:],
        "table": Table(header, rows),
        "absent": absent,
        "watched": table == "health" and name in {*health.FAILED, ServerState.DRAINING},
    }


def _health_cells(name: str, row: health.HealthRow) -> Iterator[tuple[str, ...]]:
    after = "" if row.noticed_s is None else f"{row.noticed_s:g} s"
    yield (row.answers[HEALTH], after, *(row.answers[probe] for probe in PROBES[1:]), row.server)


def _shutdown_cells(name: str, row: shutdown.ShutdownRow) -> Iterator[tuple[str, ...]]:
    seconds = "" if row.seconds is None else f"{row.seconds:g}"
    stream = (row.stream, str(row.tokens)) if shutdown.ROWS[name][1] else ()
    yield row.exit, seconds, *stream, ", ".join(row.left)


def _growth_cells(name: str, row: growth.MemoryRow) -> Iterator[tuple[str, ...]]:
    for process in row.runs[0].slopes:
        slopes = [run.slopes.get(process) for run in row.runs]
        first, second, *_ = [
            f"{s.bytes_per_request:.0f}, {s.low:.0f} to {s.high:.0f}" if s else "" for s in slopes
        ] + [""]
        yield process, first, second, "yes" if process in row.growing else "no"


_HEADERS: dict[str, Callable[[str], tuple[str, ...]]] = {
    "health": lambda name: (HEALTH, "after", *PROBES[1:], "server"),
    "shutdown": lambda name: (
        *("end", "seconds"),
        *(("stream", "tokens") if shutdown.ROWS[name][1] else ()),
        "left behind",
    ),
    "growth": lambda name: ("process", "bytes per request", "second run", "grows"),
}
_CELLS: dict[str, Callable[[str, Any], Iterable[tuple[str, ...]]]] = {
    "health": _health_cells,
    "shutdown": _shutdown_cells,
    "growth": _growth_cells,
}


def _known(table: str, releases: Iterable[ReleaseStates]) -> Iterator[str]:
    """Yield the known failures that the table shows, each with its releases."""
    for known in KNOWN:
        shown = dict.fromkeys(
            release.vllm
            for release in releases
            for name, row in release.rows(table).items()
            if known.table == table and not row.absent and known.shows(name, row)
        )
        if shown:
            yield f"{known.text} ({known.link}): {', '.join(shown)}"
