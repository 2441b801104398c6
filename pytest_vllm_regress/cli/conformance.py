"""``vllm-regress conformance``: runs the conformance suite in environments one by one, keeps a record, and writes the table of it."""

from __future__ import annotations

import dataclasses
import json
import platform
import re
import sys
import time
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import typer
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ..cases.results import write_whole
from ..errors import BuildError, UsageError
from ..runner.runner import build_with_cache, pytest_command, pytest_environment, run_command, terminate_as_interrupt
from ..util.masking import mask
from ..util.paths import shipped
from ..util.rundir import scratch
from .context import HELP, OK, UNBUILT, UNEXPECTED, invocation, say, warn

app = typer.Typer(context_settings=HELP)
RECORD = Path("docs/records/conformance.json")
TABLE = Path("docs/conformance.md")
SHOWN = ("torch", "transformers", "xgrammar", "llguidance", "outlines", "lm-format-enforcer", "ray")
TIMEOUT_S = 300
_PASSED, _ABSENT, _FAILED = "ok", "n/a", "FAIL"


@dataclasses.dataclass(frozen=True)
class Cell:
    """One check of one engine generation: ok, n/a or FAIL; ``reason`` says why it is not ok."""

    section: str
    check: str
    generation: str
    outcome: str
    reason: str = ""
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Ran:
    """The suite in one environment. ``versions`` by distribution; ``at`` is the day."""

    environment: str
    device: str
    versions: Mapping[str, str]
    machine: str
    at: str
    cells: tuple[Cell, ...]

    @property
    def vllm(self) -> Version:
        return Version(self.versions["vllm"])


@dataclasses.dataclass(frozen=True)
class Fault:
    """An upstream fault that explains failed cells: known.toml of the suite."""

    vllm: SpecifierSet
    checks: tuple[str, ...]
    symptom: re.Pattern[str]
    why: str
    generation: str = "*"
    device: str = "*"

    def explains(self, ran: Ran, cell: Cell) -> bool:
        """Version, engine, check and what was seen all match."""
        return (
            self.vllm.contains(ran.vllm, prereleases=True)
            and fnmatchcase(cell.generation, self.generation)
            and fnmatchcase(ran.device, self.device)
            and any(fnmatchcase(f"{cell.section}: {cell.check}", pattern) for pattern in self.checks)
            and self.symptom.search(cell.reason) is not None
        )


@app.command(
    epilog="Exit codes: 0 every failed cell is explained by an upstream fault; 1 not; 2 usage; 3 an environment could not be built."
)
def conformance(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Environments to run; without any, only the table is written."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Run those that the record has already.")] = False,
    record: Annotated[
        Path, typer.Option(metavar="FILE.json", help="What was seen, kept after every environment.")
    ] = RECORD,
    write: Annotated[Path, typer.Option(metavar="FILE.md", help="The table of everything in the record.")] = TABLE,
) -> None:
    """Run the conformance suite in each environment and write the table: version by check.

    An interrupted run goes on where it stopped: environments that the record has are left out. Arguments after -- go to pytest; what
    they select then replaces its cells alone (`--again NAME -- -k serve`).
    """
    suite = suite_directory()
    faults = read_faults(suite / "known.toml")
    runs = read_record(record)
    build = build_with_cache(say)
    unbuilt = []
    selection = invocation(context).pytest_args
    with terminate_as_interrupt():
        for name in dict.fromkeys(names or ()):
            if name in runs and not again:
                say(f"{name}: in the record since {runs[name].at}; --again runs it anew")
                continue
            try:
                build(name)
            except BuildError as error:
                warn(f"{name}: {error}")
                unbuilt.append(name)
                continue
            found = run_suite(name, suite, selection)
            runs[name] = merged(runs[name], found) if selection and name in runs else found
            write_whole(record, json.dumps([dataclasses.asdict(runs[each]) for each in sorted(runs)], indent=1) + "\n")
    write_whole(write, "".join(f"{line}\n" for line in table(runs.values(), faults)))
    red = unexplained(runs.values(), faults)
    for ran, cell in red:
        warn(f"{ran.environment} {cell.generation} {cell.section}: {cell.check}: {cell.reason}")
    raise typer.Exit(UNBUILT if unbuilt else UNEXPECTED if red else OK)


def suite_directory() -> Path:
    """The suite: beside the package in a checkout, in the package where it was installed."""
    place = shipped("conformance", "conformance")
    if place.is_dir():
        return place
    raise UsageError("this installation has no conformance suite: use a checkout, or a wheel of pytest-vllm-regress")


def run_suite(name: str, suite: Path, pytest_args: Sequence[str] = ()) -> Ran:
    """The whole suite in one environment, by a pytest of its own."""
    with scratch() as folder:
        report = folder / "report.xml"
        command = pytest_command(folder, suite, [suite], TIMEOUT_S)
        command += [f"--vllm-env={name}", f"--junitxml={report}", "--tb=short", *pytest_args]
        status = run_command(command, pytest_environment(folder))
        if not report.exists():
            raise UsageError(f"{name}: pytest ended with status {status} and wrote no report: see its output above")
        return read_report(name, report)


def merged(before: Ran, found: Ran) -> Ran:
    """The run before with the cells that were run again; another installation's cells are not kept."""
    if (before.versions, before.device) != (found.versions, found.device):
        return found
    cells = {(cell.section, cell.check, cell.generation): cell for cell in (*before.cells, *found.cells)}
    return dataclasses.replace(found, cells=tuple(cells.values()))


def read_report(name: str, report: Path) -> Ran:
    """What a JUnit report of the suite says."""
    root = ET.parse(report).getroot()
    properties = {
        each.get("name", ""): each.get("value", "") for each in root.iterfind("./testsuite/properties/property")
    }
    cells = tuple(_cell(case) for case in root.iter("testcase"))
    if not cells or "device" not in properties:
        raise UsageError(f"{name}: the suite ran no test: see its output above")
    versions = {key: value for key, value in json.loads(properties["versions"]).items() if key in ("vllm", *SHOWN)}
    machine = f"{platform.machine()}, Python {properties['python']}"
    return Ran(name, properties["device"], versions, machine, time.strftime("%Y-%m-%d"), cells)


def _cell(case: ET.Element) -> Cell:
    named = {each.get("name", ""): each.get("value", "") for each in case.iterfind("./properties/property")}
    seconds = round(float(case.get("time", 0)), 1)
    where = (named["section"], named["check"], named["generation"])
    for tag, outcome in (("error", _FAILED), ("failure", _FAILED), ("skipped", _ABSENT)):
        found = case.find(tag)
        if found is not None:
            text = found.get("message", "") if outcome == _ABSENT else f"{found.get('message', '')}\n{found.text or ''}"
            return Cell(*where, outcome, _gist(text), seconds)
    return Cell(*where, _PASSED, "", seconds)


def _gist(text: str) -> str:
    """What a failure says first, and every exception it names, bounded."""
    text = mask(text)
    named = re.findall(r"\b[\w.]*(?:Error|Exception|Exceeded|Died)\b: [^\n]{1,200}", text)
    return " | ".join(dict.fromkeys([*text.splitlines()[:1], *named]))[:1500]


def read_record(path: Path) -> dict[str, Ran]:
    """The runs of a record by environment; none where there is no file."""
    if not path.exists():
        return {}
    try:
        plain: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        return {
            each["environment"]: Ran(**{**each, "cells": tuple(Cell(**cell) for cell in each["cells"])})
            for each in plain
        }
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"{path}: not a record of vllm-regress conformance: {error!r}. Give another file by --record"
        ) from None


def read_faults(path: Path) -> tuple[Fault, ...]:
    """The known upstream faults."""
    listed = tomllib.loads(path.read_text(encoding="utf-8")).get("fault", []) if path.exists() else []
    return tuple(
        Fault(
            **{
                **each,
                "vllm": SpecifierSet(each["vllm"]),
                "checks": tuple(each["checks"]),
                "symptom": re.compile(each["symptom"]),
            }
        )
        for each in listed
    )


def unexplained(runs: Iterable[Ran], faults: Sequence[Fault]) -> list[tuple[Ran, Cell]]:
    """Failed cells that no known fault explains."""
    return [
        (ran, cell)
        for ran in runs
        for cell in ran.cells
        if cell.outcome == _FAILED and not any(f.explains(ran, cell) for f in faults)
    ]


def table(runs: Iterable[Ran], faults: Sequence[Fault]) -> list[str]:
    """The page, as lines of Markdown (ASCII)."""
    ordered = sorted(runs, key=lambda ran: (ran.device != "sim", ran.vllm))
    lines = [
        "# Conformance",
        "",
        "<!-- written by `vllm-regress conformance`; do not edit -->",
        "",
        "What works on which vLLM, as the suite `conformance` found it through the fixtures: a row for each version and engine generation.",
        "`ok`: the check passed. `n/a`: this vLLM or device does not do it, for the reason given. `FAIL`: done wrong; the note says what is known.",
        "`vllm-regress conformance NAME...` runs the suite in environments and writes this page; the record is `docs/records/conformance.json`.",
    ]
    for section in dict.fromkeys(cell.section for ran in ordered for cell in ran.cells):
        lines += ["", f"## {section}", "", *_section(section, ordered, faults)]
    lines += [
        "",
        "## What was installed",
        "",
        f"| environment | device | {' | '.join(('vllm', *SHOWN))} | machine | day |",
    ]
    lines.append("|" + " --- |" * (len(SHOWN) + 5))
    for ran in ordered:
        shown = [ran.versions.get(name, "") for name in ("vllm", *SHOWN)]
        lines.append(f"| {' | '.join([ran.environment, ran.device, *shown, ran.machine, ran.at])} |")
    return [line.encode("ascii", "replace").decode() for line in lines]


def _section(section: str, runs: Sequence[Ran], faults: Sequence[Fault]) -> list[str]:
    rows = {
        (ran.environment, generation): ran for ran in runs for generation in ("V0", "V1") if _exists(ran, generation)
    }
    cells = {(ran.environment, c.generation, c.check): c for ran in runs for c in ran.cells if c.section == section}
    checks = list(dict.fromkeys(check for _, _, check in cells))
    notes: dict[str, int] = {}
    lines = [f"| vLLM | {' | '.join(checks)} |", "|" + " --- |" * (len(checks) + 1)]
    for (environment, generation), ran in rows.items():
        words = []
        for check in checks:
            cell = cells.get((environment, generation, check))
            words.append("" if cell is None else _word(ran, cell, faults, notes))
        lines.append(f"| {ran.vllm} {generation} {ran.device} | {' | '.join(words)} |")
    return lines + ([""] if notes else []) + [f"{number}. {note}" for note, number in notes.items()]


def _exists(ran: Ran, generation: str) -> bool:
    """A generation that this vLLM does not have gets no row."""
    return any(cell.generation == generation and cell.outcome != _ABSENT for cell in ran.cells)


def _word(ran: Ran, cell: Cell, faults: Sequence[Fault], notes: dict[str, int]) -> str:
    if cell.outcome == _PASSED:
        return _PASSED
    known = (
        next((fault.why for fault in faults if fault.explains(ran, cell)), None) if cell.outcome == _FAILED else None
    )
    note = known or re.sub(r"\s+", " ", cell.reason.removeprefix("Skipped: "))[:300].replace("|", "/")
    note = note.replace(f"vLLM {ran.vllm}", "this vLLM")
    return f"{cell.outcome} [{notes.setdefault(note, len(notes) + 1)}]"


if __name__ == "__main__":
    sys.exit(app())
