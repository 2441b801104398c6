"""The fault suite's options and its table."""

from __future__ import annotations

import dataclasses
import json
import platform
import time

import pytest

from tests.faults.ledger import LATE_S, Cell
from tests.helpers import ROOT

PAGE, RECORD = ROOT / "docs" / "faults.md", ROOT / "docs" / "records" / "faults.json"
CELLS: pytest.StashKey[list[Cell]] = pytest.StashKey()
HEAD = f"""# Faults

<!-- written by `tox run -e faults -- --faults-record`; do not edit -->

What happens when something dies, stops, floods or fills up under a test: one row for each fault and phase, as `tests/faults` saw it. A row
stands only if the test ended at most {LATE_S:g} s after its deadline, nothing of the run was left (processes, shared memory, ports, files), and
the next one passed.

"""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Known when this folder is named on the command line."""
    parser.addoption("--faults-record", action="store_true", help="write the table of what was seen to docs/faults.md")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[CELLS] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`pytest tests` runs a sample of the cells, `pytest tests/faults` all."""
    if any("faults" in argument for argument in config.args):
        return
    left_out = [item for item in items if item.get_closest_marker("faults") and not item.get_closest_marker("sample")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def cells(request: pytest.FixtureRequest) -> list[Cell]:
    """Every cell that ran."""
    return request.config.stash[CELLS]


def pytest_sessionfinish(session: pytest.Session) -> None:
    done = session.config.stash[CELLS]
    if not session.config.getoption("faults_record", False) or not done:
        return
    when, machine = time.strftime("%Y-%m-%d"), f"{platform.machine()}, Python {platform.python_version()}"
    RECORD.write_text(
        json.dumps({"at": when, "machine": machine, "cells": [dataclasses.asdict(each) for each in done]}, indent=1)
        + "\n"
    )
    rows = [
        f"| {each.where} | {each.fault} | {each.phase} | {each.outcome.replace('|', '/')} | {each.late_s:g} |"
        for each in done
    ]
    table = ["| where | fault | phase | outcome | s after the deadline |", "| --- | --- | --- | --- | --- |", *rows]
    PAGE.write_text(
        HEAD
        + "\n".join([*table, "", f"{len(done)} cells, {when}, {machine}. The record: `docs/records/faults.json`.", ""])
    )
