"""The pages of the record of states: health, shutdown and growth of memory per release."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from packaging.version import Version

from pytest_vllm_regress.surveys.states.growth import (
    CONFIDENCE,
    KINDS,
    LEAST,
    LONG,
    READINGS,
    REQUESTS,
    WARM_UP,
    MemoryRow,
    Slope,
)
from pytest_vllm_regress.surveys.states.growth import TOKENS as MEMORY_TOKENS
from pytest_vllm_regress.surveys.states.health import (
    FAILED,
    HEALTH,
    HEALTHY,
    PROBES,
    TOKEN,
    HealthRow,
    ServerState,
)
from pytest_vllm_regress.surveys.states.measure import (
    ABSENT,
    NOT_RUN,
    TABLES,
    ReleaseStates,
    StateRow,
)
from pytest_vllm_regress.surveys.states.requests import COMPLETE, DRAIN_S, RUNS, SILENT, WAIT_S
from pytest_vllm_regress.surveys.states.shutdown import (
    BETWEEN_S,
    END_S,
    LEAVE_S,
    ROWS,
    TOKENS,
    ShutdownRow,
)
from pytest_vllm_regress.target_site.vllm_regress_target.sim.pacing import STEP_S
from pytest_vllm_regress.util.report import markdown_table
from pytest_vllm_regress.util.text import markdown_inline

_UPSTREAM = "https://github.com/vllm-project/vllm/issues/"


@dataclasses.dataclass(frozen=True)
class KnownState:
    """A failure that a row of the table shows if ``shows`` says so of its name and content.

    ``case``: its case. ``upstream``: number of a report.
    """

    table: str
    text: str
    shows: Callable[[str, Any], bool]
    case: str = ""
    upstream: int = 0

    @property
    def link(self) -> str:
        """Markdown of a link to the case or the report, from docs/generated."""
        if self.case:
            return f"[{self.case}](../../cases/{self.case}/README.md)"
        return f"[vllm-project/vllm#{self.upstream}]({_UPSTREAM}{self.upstream})"


def _claims_health(state: ServerState) -> Callable[[str, HealthRow], bool]:
    return lambda name, row: (
        name == state and row.answers[HEALTH] == HEALTHY and row.answers[TOKEN] != HEALTHY
    )


def _cut(name: str, row: ShutdownRow) -> bool:
    return name == "SIGTERM, streaming" and row.exit != RUNS and row.stream != COMPLETE


def _never_ends(name: str, row: ShutdownRow) -> bool:
    return name.endswith("streaming") and row.exit == RUNS


def _orphans(name: str, row: ShutdownRow) -> bool:
    return name.startswith("SIGKILL of the server") and bool(
        {"core", "worker"}.intersection(row.left)
    )


KNOWN = (
    KnownState(
        "health",
        "healthy while the core is stopped",
        _claims_health(ServerState.CORE_STOPPED),
        case="vllm-36451",
    ),
    KnownState(
        "health",
        "healthy while the scheduler is stuck: nothing asks whether requests progress",
        _claims_health(ServerState.SCHEDULER_STUCK),
        upstream=43122,
    ),
    KnownState(
        "health",
        "healthy, and requests wait forever, after the core was killed",
        _claims_health(ServerState.CORE_DEAD),
        case="vllm-21443",
    ),
    KnownState(
        "health",
        "healthy, and requests wait forever, after a worker was killed",
        _claims_health(ServerState.WORKER_DEAD),
        case="vllm-11737",
    ),
    KnownState(
        "health",
        "healthy while it drains and takes no request: a load balancer goes on sending",
        _claims_health(ServerState.DRAINING),
        upstream=32334,
    ),
    KnownState(
        "health",
        "answers nothing while it drains: a liveness probe fails and ends it before its streams are complete",
        lambda name, row: name == ServerState.DRAINING and row.answers[HEALTH] == SILENT,
        upstream=32334,
    ),
    KnownState(
        "health",
        "healthy while it sleeps; a request waits until somebody wakes the engine",
        _claims_health(ServerState.ASLEEP),
        upstream=15483,
    ),
    KnownState("shutdown", "SIGTERM cuts streams", _cut, case="vllm-24885"),
    KnownState(
        "shutdown",
        "a signal during a stream does not end the server: it waits for the connection to close, and nothing ends the stream any more",
        _never_ends,
        upstream=36964,
    ),
    KnownState(
        "shutdown", "a killed server leaves its core, which keeps the GPU", _orphans, upstream=55510
    ),
)


def page(table: str, releases: Iterable[ReleaseStates]) -> str:
    """Return the page of a table, newest release first.

    It has the releases of which some of its rows were measured.
    """
    measured = [release for release in releases if release.rows(table)]
    measured.sort(key=lambda release: Version(release.vllm), reverse=True)
    return "\n".join([*PAGES[table](measured), ""])


def _health_page(releases: Sequence[ReleaseStates]) -> list[str]:
    lines = [
        "# Health per release",
        "",
        "<!-- written by `python -m tools.docs`; do not edit -->",
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
        *_overview("health", releases),
        "",
        *_remarks("health", releases),
    ]
    for state in ServerState:
        lines += ["", f"## {state.capitalize()}", ""]
        if state in FAILED or state is ServerState.DRAINING:
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


def _health_cells(row: HealthRow | None) -> tuple[str, ...]:
    if row is None or row.absent:
        return (ABSENT if row else NOT_RUN, *[""] * (len(PROBES) + 1))
    after = "" if row.noticed_s is None else f"{row.noticed_s:g} s"
    return (row.answers[HEALTH], after, *(row.answers[probe] for probe in PROBES[1:]), row.server)


def _shutdown_page(releases: Sequence[ReleaseStates]) -> list[str]:
    lines = [
        "# Shutdown per release",
        "",
        "<!-- written by `python -m tools.docs`; do not edit -->",
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
        *_overview("shutdown", releases),
        "",
        *_remarks("shutdown", releases),
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


def _growth_page(releases: Sequence[ReleaseStates]) -> list[str]:
    lines = [
        "# Growth of memory per release",
        "",
        "<!-- written by `python -m tools.docs`; do not edit -->",
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
        *_overview("growth", releases),
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


def _overview(table: str, releases: Sequence[ReleaseStates]) -> list[str]:
    names = TABLES[table].names
    rows = [(r.vllm, *(r.summary(table, name) for name in names)) for r in releases]
    return markdown_table(("vLLM", *names), rows)


def _reasons(rows: Iterable[tuple[str, StateRow | None]]) -> list[str]:
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


def _remarks(table: str, releases: Sequence[ReleaseStates]) -> list[str]:
    """Return the known failures that the table shows, each with its releases."""
    lines = []
    for known in KNOWN:
        shown = [
            release.vllm
            for release in releases
            for name, row in release.rows(table).items()
            if known.table == table and not row.absent and known.shows(name, row)
        ]
        if shown:
            lines.append(f"- {known.text} ({known.link}): {', '.join(dict.fromkeys(shown))}")
    return ["What these cells show:", "", *lines] if lines else []


PAGES: dict[str, Callable[[Sequence[ReleaseStates]], list[str]]] = {
    "health": _health_page,
    "shutdown": _shutdown_page,
    "growth": _growth_page,
}
