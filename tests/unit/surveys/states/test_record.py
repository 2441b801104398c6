"""The record of measured states, its pages, and the choice of rows that are still to be measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.engines.spec import EngineSpec
from pytest_vllm_regress.errors import ChildDied, Unsupported, UsageError
from pytest_vllm_regress.surveys.states import measure
from pytest_vllm_regress.surveys.states.growth import KINDS as LOADS
from pytest_vllm_regress.surveys.states.growth import MemoryRow, MemoryRun, Slope
from pytest_vllm_regress.surveys.states.health import (
    AFTER,
    HEALTH,
    PROBES,
    TOKEN,
    HealthRow,
    ServerState,
)
from pytest_vllm_regress.surveys.states.measure import ReleaseStates, open_states, report
from pytest_vllm_regress.surveys.states.shutdown import ENDINGS, ROWS, ShutdownRow
from pytest_vllm_regress.util.report import to_terminal
from tests.helpers import ROOT
from tools.states_pages import KNOWN
from tools.states_pages import page as states_page


def answers(health: str, token: str) -> dict[str, str]:
    return {**dict.fromkeys(PROBES, "200"), HEALTH: health, TOKEN: token, AFTER: health}


LIES = HealthRow(answers("200", "no answer"), "runs")
FAILS = HealthRow(answers("503", "500"), "exit status 0", noticed_s=0.3)
WORKS = HealthRow(answers("200", "200"), "runs")
NEW = ReleaseStates(
    "0.33.0",
    "2026-11-24",
    health={ServerState.ALIVE: WORKS, ServerState.CORE_STOPPED: LIES, ServerState.CORE_DEAD: FAILS},
    shutdown={
        "SIGTERM, streaming": ShutdownRow("exit status 0", 0.6, "error", 2),
        "SIGKILL of the server, idle": ShutdownRow("killed by SIGKILL", 0.1, left=("core", "port")),
        "SIGTERM, time to drain, streaming": ShutdownRow("exit status 0", 4.5, "complete", 80),
    },
    growth={
        "completion": MemoryRow(
            (MemoryRun({"server": Slope(10, -5, 30), "core": Slope(900, 800, 1000)}),)
        )
    },
)
OLD = ReleaseStates(
    "0.9.2",
    "2026-11-24",
    health={
        ServerState.DRAINING: HealthRow(
            absent="vLLM 0.9.2 has no engine argument 'shutdown_timeout'"
        )
    },
    shutdown={"SIGTERM, idle": ShutdownRow("runs")},
)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    releases = {"vllm-0.33.0": NEW, "vllm-0.9.2": OLD}
    open_states(tmp_path / "states.jsonl").rewrite(releases)
    assert dict(open_states(tmp_path / "states.jsonl").entries) == releases
    assert dict(open_states(tmp_path / "absent.jsonl").entries) == {}


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"a": 1}',
        '{"store": "states of releases", "key": null}\n{"a": {"vllm": "1", "health": 2}}',
    ],
)
def test_another_file_is_no_record(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.jsonl").write_text(f"{text}\n")
    with pytest.raises(UsageError, match=r"other\.jsonl"):
        open_states(tmp_path / "other.jsonl")


def test_the_report_has_a_column_for_each_release() -> None:
    lines = to_terminal(report([OLD, NEW], ["health", "growth"])).splitlines()
    assert [line.split() for line in lines if line.startswith("core stopped")] == [
        ["core", "stopped", "not", "run", "200,", "but", "no", "answer"]
    ]
    assert [line.split()[-1] for line in lines if line.startswith("completion")] == ["no"]


def test_a_contradiction_is_marked_in_either_direction() -> None:
    assert LIES.contradiction and HealthRow(answers("503", "200")).contradiction
    assert not (
        FAILS.contradiction
        or WORKS.contradiction
        or HealthRow(absent="no such state").contradiction
    )


def test_the_page_on_health_has_a_row_for_each_release_and_marks_contradictions() -> None:
    page = states_page("health", [OLD, NEW]).splitlines()
    (row,) = [line for line in page if line.startswith("| 0.33.0 |")][:1]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert dict(zip(ServerState, cells[1:], strict=True)) == {
        ServerState.ALIVE: "200, 200",
        ServerState.ASLEEP: "not run",
        ServerState.CORE_STOPPED: "200, but no answer",
        ServerState.SCHEDULER_STUCK: "not run",
        ServerState.CORE_DEAD: "503, 500",
        ServerState.WORKER_DEAD: "not run",
        ServerState.DRAINING: "not run",
    }
    assert any("vllm-36451" in line and line.endswith(": 0.33.0") for line in page)
    assert [line for line in page if line.startswith("- n/a for 0.9.2:") and "this vLLM" in line]


def test_the_page_on_shutdown_says_how_a_server_ended_and_what_it_left() -> None:
    lines = states_page("shutdown", [NEW, OLD]).splitlines()
    text = "\n".join(lines)
    assert "| 0.33.0 | exit status 0 | 0.6 | error | 2 |  |" in text
    assert "| 0.33.0 | killed by SIGKILL | 0.1 | core, port |" in text
    assert text.index("| 0.33.0 |") < text.index("| 0.9.2 |")
    assert all(f"## {name}" in lines for name in ROWS)


def test_each_known_failure_has_a_case_or_a_report() -> None:
    for known in KNOWN:
        assert bool(known.case) != bool(known.upstream), known.text
        assert not known.case or (ROOT / "cases" / known.case / "case.toml").exists()


@pytest.mark.parametrize(
    ("name", "row", "words"),
    [
        ("SIGTERM, streaming", ShutdownRow("exit status 0", 0.6, "error", 2), "cuts streams"),
        ("SIGTERM, streaming", ShutdownRow("runs", None, "open", 2), "does not end the server"),
        (
            "SIGKILL of the server, idle",
            ShutdownRow("killed by SIGKILL", 0.1, left=("core",)),
            "leaves its core",
        ),
        ("SIGTERM, streaming", ShutdownRow("exit status 0", 4.0, "complete", 80), None),
        ("SIGKILL of the core, idle", ShutdownRow("runs"), None),
        ("SIGKILL of the server, idle", ShutdownRow("killed by SIGKILL", 0.1), None),
    ],
)
def test_an_ending_shows_the_known_failure_that_it_is(
    name: str, row: ShutdownRow, words: str | None
) -> None:
    shown = [known.text for known in KNOWN if known.table == "shutdown" and known.shows(name, row)]
    assert len(shown) == (words is not None) and all(words in text for text in shown if words)


def test_every_ending_is_measured_while_streaming() -> None:
    assert {name for name, (_, streaming) in ROWS.items() if streaming} == {
        f"{name}, streaming" for name in ENDINGS
    }


class FakeEngines:
    """Provides servers that fail to start as ``fails`` says of their spec, and records which were
    discarded."""

    def __init__(self, fails: Callable[[EngineSpec], Exception | None] = lambda spec: None) -> None:
        self.fails = fails
        self.started = self.discarded = 0

    def __call__(self, spec: EngineSpec, *, front: str) -> object:
        if (error := self.fails(spec)) is not None:
            raise error
        self.started += 1
        return object()

    def discard(self, server: object) -> None:
        self.discarded += 1


@pytest.fixture(autouse=True)
def observations(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: dict[str, measure.StateRow] = {
        "health": WORKS,
        "shutdown": ShutdownRow("exit status 0", 0.1),
        "growth": MemoryRow((MemoryRun({}),)),
    }
    for name, row in rows.items():
        table = dataclasses.replace(measure.TABLES[name], observe=observing(row))
        monkeypatch.setitem(measure.TABLES, name, table)


def observing(row: measure.StateRow) -> Callable[..., measure.StateRow]:
    return lambda server, name: row


def measured(engines: FakeEngines, release: ReleaseStates, *tables: str) -> list[ReleaseStates]:
    fake: Any = engines
    return [
        *measure.measure(fake, release, "2026-11-25", lambda line: None, tables or measure.TABLES)
    ]


def test_only_missing_rows_are_measured_and_every_server_is_discarded() -> None:
    engines = FakeEngines()
    releases = measured(engines, NEW)
    assert (
        len(releases)
        == len(ServerState) + len(ROWS) + len(LOADS) - 7
        == engines.started
        == engines.discarded
    )
    assert releases[-1].missing() == []
    assert releases[-1].health[ServerState.CORE_STOPPED] == LIES
    assert releases[-1].day == "2026-11-25"
    assert measured(engines, releases[-1]) == []


def test_one_table_can_be_measured_again() -> None:
    releases = measured(FakeEngines(), dataclasses.replace(NEW, health={}), "health")
    assert [*releases[-1].health] == [*ServerState]
    assert releases[-1].shutdown == NEW.shutdown


def test_what_a_release_does_not_have_is_recorded_with_the_reason() -> None:
    def refuse(spec: EngineSpec) -> Exception | None:
        return (
            Unsupported("no engine argument 'shutdown_timeout'")
            if "shutdown_timeout" in spec.extra
            else None
        )

    last = measured(FakeEngines(refuse), ReleaseStates("0.9.2"))[-1]
    assert [state for state, row in last.health.items() if row.absent] == [ServerState.DRAINING]
    assert [name for name, row in last.shutdown.items() if row.absent] == [
        "SIGTERM, time to drain, streaming"
    ]


def test_a_row_that_cannot_be_measured_stays_missing_and_the_others_are_measured() -> None:
    def die(spec: EngineSpec) -> Exception | None:
        return (
            ChildDied("the server died", phase="ready") if spec.tensor_parallel_size == 2 else None
        )

    last = measured(FakeEngines(die), ReleaseStates("1.0"))[-1]
    assert {name for _, name in last.missing()} == {
        ServerState.WORKER_DEAD,
        "SIGKILL of a worker, idle",
        "SIGKILL of a worker, streaming",
    }
