"""Options of the fault suite, and the page with its results."""

from __future__ import annotations

import platform
import time

import pytest

from tests.faults.cells import LATE_S, Cell
from tests.helpers import ROOT

PAGE = ROOT / "docs" / "generated" / "faults.md"
CELLS: pytest.StashKey[list[Cell]] = pytest.StashKey()
HEAD = f"""# Faults

<!-- written by `tox run -e faults -- --faults-record`; do not edit -->

What a test reports when a process dies, stops, floods its output or fills a disk: one row for each fault and phase,
written by `tests/faults`. In every row the test ended at most {LATE_S:g} s after its deadline, left nothing behind
(processes, shared memory, ports, files), and the next test passed.

"""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option, which pytest knows if this folder is named on the command line."""
    parser.addoption(
        "--faults-record",
        action="store_true",
        help="write the table of results to docs/generated/faults.md",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[CELLS] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run a sample of the cells in `pytest tests`, all of them in `pytest tests/faults`."""
    if any("faults" in argument for argument in config.args):
        return
    deselected = [
        item
        for item in items
        if item.get_closest_marker("faults") and not item.get_closest_marker("sample")
    ]
    config.hook.pytest_deselected(items=deselected)
    items[:] = [item for item in items if item not in deselected]


@pytest.fixture(scope="session")
def cells(request: pytest.FixtureRequest) -> list[Cell]:
    """All cells that ran."""
    return request.config.stash[CELLS]


def pytest_sessionfinish(session: pytest.Session) -> None:
    done = session.config.stash[CELLS]
    if not session.config.getoption("faults_record", False) or not done:
        return
    if late := [cell for cell in done if cell.late_s > LATE_S]:
        pytest.exit(
            f"not recorded, because these ended later than {LATE_S:g} s (is the machine idle?): {late}",
            1,
        )
    when, machine = (
        time.strftime("%Y-%m-%d"),
        f"{platform.machine()}, Python {platform.python_version()}",
    )
    rows = [
        f"| {cell.where} | {cell.fault} | {cell.phase} | {cell.outcome.replace('|', '/')} | {cell.late_s:g} |"
        for cell in done
    ]
    table = [
        "| where | fault | phase | outcome | s after the deadline |",
        "| --- | --- | --- | --- | --- |",
        *rows,
    ]
    PAGE.write_text(HEAD + "\n".join([*table, "", f"{len(done)} cells, {when}, {machine}.", ""]))
