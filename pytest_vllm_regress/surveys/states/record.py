"""The record of ``vllm-regress states`` as JSON, and its pages: health, shutdown and growth of
memory per release."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

from ...target_site.vllm_regress_target.sim.pacing import STEP_S
from ...util import record_file
from ...util.report import markdown_table
from ...util.text import markdown_inline
from .growth import CONFIDENCE, LEAST, Slope
from .health import FAILED, HEALTH, PROBES, TOKEN, HealthRow, State
from .known import KNOWN
from .measure import HEALTH as HEALTH_TABLE
from .measure import SHUTDOWN, Release
from .memory import KINDS, LONG, READINGS, REQUESTS, WARM_UP, MemoryRow, Run
from .memory import TOKENS as MEMORY_TOKENS
from .requests import WAIT_S
from .servers import DRAIN_S
from .shutdown import BETWEEN_S, END_S, LEAVE_S, ROWS, TOKENS, ShutdownRow

COMMAND = "states"
FILES = ("health.md", "shutdown.md", "growth.md")
NOT_RUN, ABSENT = "not run", "n/a"


def read_record(path: Path) -> dict[str, Release]:
    """Return the recorded releases by environment; an empty dict without a file.

    Raises ``UsageError`` for an invalid file.
    """
    return record_file.read_record(path, COMMAND, lambda name, entry: _release(entry))


def write_record(path: Path, releases: Mapping[str, Release]) -> None:
    """Write the record where ``read_record`` finds it, oldest release first."""
    ordered = sorted(releases, key=lambda name: Version(releases[name].vllm))
    record_file.write_record(path, {name: to_json(releases[name]) for name in ordered})


def to_json(release: Release) -> dict[str, Any]:
    """Return a release's entry in the record."""
    return dataclasses.asdict(release)


def pages(releases: Iterable[Release]) -> dict[str, list[str]]:
    """Return the lines of each page by file name, newest release first.

    A page has the releases of which some of its rows were measured.
    """
    ordered = sorted(releases, key=lambda release: Version(release.vllm), reverse=True)
    lines = (
        _health_page([release for release in ordered if release.health]),
        _shutdown_page([release for release in ordered if release.shutdown]),
        _growth_page([release for release in ordered if release.growth]),
    )
    return dict(zip(FILES, lines, strict=True))


def _health_page(releases: Sequence[Release]) -> list[str]:
    lines = [
        "# Health per release",
        "",
        "<!-- written by `vllm-regress states`; do not edit -->",
        "",
        "What the addresses that load balancers and orchestrators ask say while the engine behind them works, is stuck, or is gone.",
        "",
        "Each state was made with a V1 server of its own on the simulated device: `core stopped` by SIGSTOP, `core dead` and `worker dead` (of two,",
        "with tensor parallelism) by SIGKILL, `scheduler stuck` by a scheduler that waits forever, `draining` by SIGTERM during a stream",
        "with `--shutdown-timeout`, `asleep` by `/sleep`. The simulated device releases nothing in its sleep: a request that a release lets through",
        "is answered here, and may crash a GPU's engine.",
        "",
        "In the first table a cell is the answer of `/health`, then that of a request for one token. `but` marks a contradiction: the server says it",
        f"is healthy and does not answer, or the reverse. A number is an HTTP status. `no answer`: none within {WAIT_S:g} s. `refused`: no",
        f"connection. `broken`: the connection ended without an answer. `{ABSENT}`: the release has no such state; the reasons are below.",
        "",
        *markdown_table(
            ("vLLM", *State),
            ((release.vllm, *(_summary(release, s) for s in State)) for release in releases),
        ),
        "",
        *_remarks(
            HEALTH_TABLE,
            [
                (state, release.vllm, row)
                for release in releases
                for state, row in release.health.items()
            ],
        ),
    ]
    for state in State:
        lines += ["", f"## {state.capitalize()}", ""]
        if state in FAILED or state is State.DRAINING:
            lines += [
                f"`/health` was asked until it said something else than 200, for at most {WAIT_S:g} s; the column `after` has the seconds. "
                "The other questions came after that.",
                "",
            ]
        header = ("vLLM", HEALTH, "after", *PROBES[1:], "server")
        rows = [(release.vllm, *_health_cells(release.health.get(state))) for release in releases]
        lines += markdown_table(header, rows)
        lines += _reasons((release.vllm, release.health.get(state)) for release in releases)
    return lines


def _summary(release: Release, state: State) -> str:
    row = release.health.get(state)
    if row is None or row.absent:
        return ABSENT if row else NOT_RUN
    return f"{row.answers[HEALTH]}{', but ' if row.contradiction else ', '}{row.answers[TOKEN]}"


def _health_cells(row: HealthRow | None) -> tuple[str, ...]:
    if row is None or row.absent:
        return (ABSENT if row else NOT_RUN, *[""] * (len(PROBES) + 1))
    after = "" if row.noticed_s is None else f"{row.noticed_s:g} s"
    return (row.answers[HEALTH], after, *(row.answers[probe] for probe in PROBES[1:]), row.server)


def _shutdown_page(releases: Sequence[Release]) -> list[str]:
    lines = [
        "# Shutdown per release",
        "",
        "<!-- written by `vllm-regress states`; do not edit -->",
        "",
        "How a server ends: by which signal, idle or during a stream, how fast, and what it leaves behind.",
        "",
        "Each ending happened to a V1 server of its own on the simulated device, with the options of the release; for `time to drain` also with",
        f"`--shutdown-timeout {DRAIN_S}`. A stream had {TOKENS} tokens, {1 / STEP_S:g} a second; the signal came after the first one. The second",
        f"SIGTERM came {BETWEEN_S:g} s after the first, if the server still ran. The killed worker is one of two (tensor parallelism).",
        "",
        "In the first table a cell says how the server ended, after how many seconds, and how its stream ended. `runs`: it still ran after",
        f"{END_S:g} s. `complete`: all tokens came, and `[DONE]`. `cut`: the stream ended without `[DONE]`. `error`: it ended with an error.",
        f"`left`: what was there {LEAVE_S:g} s after the end. `{ABSENT}`: the release has no such ending; the reasons are below.",
        "",
        "The port stays in use where vLLM forks its core, because the core inherits the server's socket. Each cell is a single run. In",
        "many releases the core's last message and its exit race, so that a cell with `runs` may say `error` in the next run.",
        "",
        *markdown_table(
            ("vLLM", *ROWS),
            (
                (release.vllm, *(_ending(release.shutdown.get(n)) for n in ROWS))
                for release in releases
            ),
        ),
        "",
        *_remarks(
            SHUTDOWN,
            [
                (name, release.vllm, row)
                for release in releases
                for name, row in release.shutdown.items()
            ],
        ),
    ]
    for name, (_, streaming) in ROWS.items():
        header = (
            "vLLM",
            "end",
            "seconds",
            *(("stream", "tokens") if streaming else ()),
            "left behind",
        )
        lines += ["", f"## {name}", ""]
        lines += markdown_table(
            header,
            (
                (release.vllm, *_shutdown_cells(release.shutdown.get(name), streaming))
                for release in releases
            ),
        )
        lines += _reasons((release.vllm, release.shutdown.get(name)) for release in releases)
    return lines


def _ending(row: ShutdownRow | None) -> str:
    if row is None or row.absent:
        return ABSENT if row else NOT_RUN
    seconds = "" if row.seconds is None else f", {row.seconds:g} s"
    stream = f", {row.stream}" if row.stream else ""
    return f"{row.exit}{seconds}{stream}" + (f", left: {', '.join(row.left)}" if row.left else "")


def _shutdown_cells(row: ShutdownRow | None, streaming: bool) -> tuple[str, ...]:
    if row is None or row.absent:
        return (ABSENT if row else NOT_RUN, *[""] * (4 if streaming else 2))
    seconds = "" if row.seconds is None else f"{row.seconds:g}"
    return (
        row.exit,
        seconds,
        *((row.stream, str(row.tokens)) if streaming else ()),
        ", ".join(row.left),
    )


def _growth_page(releases: Sequence[Release]) -> list[str]:
    lines = [
        "# Growth of memory per release",
        "",
        "<!-- written by `vllm-regress states`; do not edit -->",
        "",
        "How much memory each process of a server gains with each request, in bytes.",
        "",
        "Each kind of request was sent to a V1 server of its own on the simulated device, one request after the other:",
        f"{WARM_UP} to fill caches, then {REQUESTS}, during which the memory that a process shares with no other one was read",
        f"{READINGS} times. The prompts differ, the schema does not. Answers have at most {MEMORY_TOKENS} tokens. An aborted stream",
        f"has {LONG}, and the client closes the connection after the first chunk.",
        "",
        "A slope is the median of those between all pairs of readings, and after it the interval that holds it with",
        f"{CONFIDENCE:.0%} confidence. If a whole interval was above {LEAST:g} bytes, about one object for each request, {REQUESTS} more",
        "requests were sent to the same server. `grows`: so was the interval of the same process in this second run. Otherwise the",
        "first growth was a cache that filled, or chance. A process that grows may still fill a cache whose limit is far above",
        "these requests. The simulated device has no tensors: what grows are Python objects of vLLM or of the simulated worker,",
        "which runs in the process of the core.",
        "",
        *markdown_table(
            ("vLLM", *KINDS),
            (
                (release.vllm, *(_growing(release.growth.get(k)) for k in KINDS))
                for release in releases
            ),
        ),
    ]
    for kind in KINDS:
        rows = [
            cells
            for release in releases
            for cells in _growth_cells(release.vllm, release.growth.get(kind))
        ]
        lines += ["", f"## {kind.capitalize()}", ""]
        lines += markdown_table(
            ("vLLM", "process", "bytes per request", "second run", "grows"), rows
        )
        lines += _reasons((release.vllm, release.growth.get(kind)) for release in releases)
    return lines


def _growing(row: MemoryRow | None) -> str:
    if row is None or row.absent:
        return ABSENT if row else NOT_RUN
    return f"{', '.join(sorted(row.growing))} grows" if row.growing else "no"


def _growth_cells(vllm: str, row: MemoryRow | None) -> list[tuple[str, ...]]:
    if row is None or row.absent:
        return [(vllm, ABSENT if row else NOT_RUN, "", "", "")]
    return [
        (
            vllm,
            process,
            _slope(row.runs[0].slopes[process]),
            _slope(row.runs[1].slopes.get(process)) if len(row.runs) > 1 else "",
            "yes" if process in row.growing else "no",
        )
        for process in row.runs[0].slopes
    ]


def _slope(slope: Slope | None) -> str:
    return (
        ""
        if slope is None
        else f"{slope.bytes_per_request:.0f}, {slope.low:.0f} to {slope.high:.0f}"
    )


def _reasons(rows: Iterable[tuple[str, HealthRow | ShutdownRow | MemoryRow | None]]) -> list[str]:
    """Return why releases have no such row, one line for each reason."""
    absent: dict[str, list[str]] = {}
    for vllm, row in rows:
        if row is not None and row.absent:
            absent.setdefault(row.absent.replace(f"vLLM {vllm}", "this vLLM"), []).append(vllm)
    lines = [
        f"- {ABSENT} for {', '.join(releases)}: {markdown_inline(reason)}"
        for reason, releases in absent.items()
    ]
    return ["", *lines] if lines else []


def _remarks(table: str, rows: Sequence[tuple[str, str, Any]]) -> list[str]:
    """Return the known failures that the table shows, each with its releases."""
    lines = []
    for known in KNOWN:
        shown = [
            vllm
            for name, vllm, row in rows
            if known.table == table and not row.absent and known.shows(name, row)
        ]
        if shown:
            lines.append(f"- {known.text} ({known.link}): {', '.join(dict.fromkeys(shown))}")
    return ["What these cells show:", "", *lines] if lines else []


def _release(entry: Mapping[str, Any]) -> Release:
    health_rows = {State(name): HealthRow(**row) for name, row in entry["health"].items()}
    rows = {
        name: ShutdownRow(**{**row, "left": tuple(row["left"])})
        for name, row in entry["shutdown"].items()
        if name in ROWS
    }
    growth = {
        name: MemoryRow(tuple(_run(run) for run in row["runs"]), row["absent"])
        for name, row in entry.get("growth", {}).items()
        if name in KINDS
    }
    return Release(**{**entry, "health": health_rows, "shutdown": rows, "growth": growth})


def _run(entry: Mapping[str, Any]) -> Run:
    return Run({process: Slope(**slope) for process, slope in entry["slopes"].items()})
