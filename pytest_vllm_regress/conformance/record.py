"""The record of the conformance suite: what each check of each engine generation gave, by environment."""

from __future__ import annotations

import dataclasses
import json
import platform
import re
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ..errors import UsageError
from ..util import patterns
from ..util.documents import load_json, load_toml
from ..util.files import write_whole
from ..util.masking import mask
from ..util.versions import version_of

MAX_BYTES = 16 * 1024 * 1024
SHOWN = ("torch", "transformers", "xgrammar", "llguidance", "outlines", "lm-format-enforcer", "ray")
_GPU = "vllm_gpu_"
PASSED, ABSENT, FAILED = "ok", "n/a", "FAIL"


@dataclasses.dataclass(frozen=True)
class CheckResult:
    """One check of one engine generation: ok, n/a or FAIL; ``reason`` says why it is not ok."""

    section: str
    check: str
    generation: str
    outcome: str
    reason: str = ""
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class SuiteRun:
    """The suite in one environment on one device. ``versions`` by distribution; ``at`` is the day; ``gpu``: on GPUs, what the engines ran on.

    ``whole``: every check has run; else only those that somebody selected.
    """

    environment: str
    device: str
    versions: Mapping[str, str]
    machine: str
    at: str
    cells: tuple[CheckResult, ...]
    gpu: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    whole: bool = True

    @property
    def key(self) -> tuple[str, str]:
        """Environment and device: what ran on a GPU does not replace what ran on the simulated device."""
        return self.environment, self.device

    @property
    def vllm(self) -> Version:
        return version_of(self.versions["vllm"]) or Version("0")


@dataclasses.dataclass(frozen=True)
class Fault:
    """An upstream fault that explains failed cells: known.toml of the suite."""

    vllm: SpecifierSet
    checks: tuple[str, ...]
    symptom: str
    why: str
    generation: str = "*"
    device: str = "*"

    def explains(self, ran: SuiteRun, cell: CheckResult) -> bool:
        """Version, engine, check and what was seen all match."""
        return (
            self.vllm.contains(ran.vllm, prereleases=True)
            and fnmatchcase(cell.generation, self.generation)
            and fnmatchcase(ran.device, self.device)
            and any(fnmatchcase(f"{cell.section}: {cell.check}", pattern) for pattern in self.checks)
            and patterns.search(self.symptom, cell.reason) is not None
        )


def merged(before: SuiteRun, found: SuiteRun) -> SuiteRun:
    """The run before with the cells that were run again; another installation's cells are not kept."""
    if (before.versions, before.device) != (found.versions, found.device):
        return found
    cells = {(cell.section, cell.check, cell.generation): cell for cell in (*before.cells, *found.cells)}
    gpu = {**before.gpu, **found.gpu}
    return dataclasses.replace(found, cells=tuple(cells.values()), gpu=gpu, whole=before.whole or found.whole)


def add(runs: dict[tuple[str, str], SuiteRun], found: SuiteRun) -> None:
    """Take ``found`` into a record: a whole run in place of what is there, a part of one over it."""
    before = runs.get(found.key)
    runs[found.key] = found if found.whole or before is None else merged(before, found)


def read_report(name: str, report: Path) -> SuiteRun:
    """What a JUnit report of the suite says."""
    root = ET.parse(report).getroot()
    properties = {
        each.get("name", ""): each.get("value", "") for each in root.iterfind("./testsuite/properties/property")
    }
    cells = tuple(_cell(case) for case in root.iter("testcase"))
    if not cells or "device" not in properties:
        raise UsageError(f"{name}: the suite ran no test: see its output above; what is selected (-k) may match none")
    versions = {key: value for key, value in json.loads(properties["versions"]).items() if key in ("vllm", *SHOWN)}
    machine = f"{platform.machine()}, Python {properties['python']}"
    return SuiteRun(name, properties["device"], versions, machine, time.strftime("%Y-%m-%d"), cells, _gpu_of(root))


def _gpu_of(root: ET.Element) -> dict[str, str]:
    """Everything that the tests say of the GPUs they ran on."""
    found: dict[str, dict[str, None]] = {}
    for each in root.iterfind(".//testcase/properties/property"):
        name = each.get("name", "")
        if name.startswith(_GPU):
            found.setdefault(name.removeprefix(_GPU), {})[each.get("value", "")] = None
    return {name: " | ".join(values) for name, values in found.items()}


def _cell(case: ET.Element) -> CheckResult:
    named = {each.get("name", ""): each.get("value", "") for each in case.iterfind("./properties/property")}
    seconds = round(float(case.get("time", 0)), 1)
    where = (named["section"], named["check"], named["generation"])
    for tag, outcome in (("error", FAILED), ("failure", FAILED), ("skipped", ABSENT)):
        found = case.find(tag)
        if found is not None:
            text = found.get("message", "") if outcome == ABSENT else f"{found.get('message', '')}\n{found.text or ''}"
            return CheckResult(*where, outcome, _gist(text), seconds)
    return CheckResult(*where, PASSED, "", seconds)


def _gist(text: str) -> str:
    """What a failure says first, and every exception it names, bounded."""
    text = mask(text)
    named = re.findall(r"\b[\w.]*(?:Error|Exception|Exceeded|Died)\b: [^\n]{1,200}", text)
    return " | ".join(dict.fromkeys([*text.splitlines()[:1], *named]))[:1500]


def read_record(path: Path) -> dict[tuple[str, str], SuiteRun]:
    """The runs of a record by environment and device; none where there is no file."""
    if not path.exists():
        return {}
    try:
        plain: list[dict[str, Any]] = load_json(path, MAX_BYTES, what="a record of vllm-regress conformance")
        runs = [SuiteRun(**{**each, "cells": tuple(CheckResult(**cell) for cell in each["cells"])}) for each in plain]
        return {ran.key: ran for ran in runs}
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"{path}: not a record of vllm-regress conformance: {error!r}. Give another file by --record"
        ) from None


def write_record(path: Path, runs: Mapping[tuple[str, str], SuiteRun]) -> None:
    """Write the runs where ``read_record`` finds them."""
    write_whole(path, json.dumps([dataclasses.asdict(runs[each]) for each in sorted(runs)], indent=1) + "\n")


def read_faults(path: Path) -> tuple[Fault, ...]:
    """The known upstream faults. Raises ``UsageError`` for anything else."""
    listed = load_toml(path, MAX_BYTES, what="a list of faults").get("fault", []) if path.exists() else []
    try:
        faults = tuple(
            Fault(**{**each, "vllm": SpecifierSet(each["vllm"]), "checks": tuple(each["checks"])}) for each in listed
        )
        for each in faults:
            re.compile(each.symptom)
    except (ValueError, TypeError, KeyError, re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"{path}: a list of faults cannot be read from it: {error!r}") from None
    return faults


def unexplained(runs: Iterable[SuiteRun], faults: Sequence[Fault]) -> list[tuple[SuiteRun, CheckResult]]:
    """Failed cells that no known fault explains."""
    return [
        (ran, cell)
        for ran in runs
        for cell in ran.cells
        if cell.outcome == FAILED and not any(f.explains(ran, cell) for f in faults)
    ]
