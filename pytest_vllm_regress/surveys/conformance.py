"""Which features work on which vLLM: run the conformance suite, a check on each engine generation
of an environment, and explain what fails by known upstream failures."""

from __future__ import annotations

import json
import platform
import re
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from msgspec.structs import astuple
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ..engines.target import built_target
from ..errors import UsageError
from ..runner.pytest_run import pytest_command, pytest_environment, run_command
from ..util import codec, patterns
from ..util.codec import Document, Meta
from ..util.masking import mask
from ..util.paths import shipped
from ..util.report import Report, Section, Table
from ..util.rundir import scratch
from ..util.store import Store
from ..util.versions import version_of
from . import check_record

MAX_BYTES = 16 * 1024 * 1024
TIMEOUT_S = 300
GPU_TIMEOUT_S = 1800
"""The first start on a GPU compiles kernels."""
ON_GPU = ("--vllm-gpu", "--vllm-device=gpu")
"""Arguments of pytest that request real GPUs."""
SHOWN = ("torch", "transformers", "xgrammar", "llguidance", "outlines", "lm-format-enforcer", "ray")
_GPU = "vllm_gpu_"
PASSED, ABSENT, FAILED = "ok", "n/a", "FAIL"
GENERATIONS = ("V0", "V1")


class CheckOutcome(Document, frozen=True, array_like=True):
    """ok, n/a or FAIL, and why it is not ok."""

    word: Annotated[str, Meta(pattern="^(ok|n/a|FAIL)$")]
    reason: str = ""


class CheckResult(Document, frozen=True):
    """Outcome of one check on one engine generation."""

    section: str
    check: str
    generation: str
    outcome: str
    reason: str = ""


@dataclass(frozen=True)
class SuiteRun:
    """A run of the suite in one environment on one device.

    ``versions``: by distribution. ``at``: the day. ``gpu``: properties of the GPUs, if any.
    ``whole``: False if only selected checks were run.
    ``results``: by section and check, for each of ``GENERATIONS`` the index of its outcome. Most
    outcomes are equal, and their reasons long: the record of all runs stays small.
    """

    environment: str
    device: str
    versions: Mapping[str, str]
    machine: str
    at: str
    gpu: Mapping[str, str] = field(default_factory=dict, hash=False)
    whole: bool = True
    outcomes: tuple[CheckOutcome, ...] = ()
    results: Mapping[str, Mapping[str, tuple[int | None, int | None]]] = field(
        default_factory=dict, hash=False
    )

    def __post_init__(self) -> None:
        try:
            self.cells  # noqa: B018
        except IndexError:
            raise ValueError("a result has no outcome") from None

    @property
    def cells(self) -> tuple[CheckResult, ...]:
        """The results one by one."""
        return tuple(
            CheckResult(section, check, generation, *astuple(self.outcomes[index]))
            for section, checks in self.results.items()
            for check, indices in checks.items()
            for generation, index in zip(GENERATIONS, indices, strict=True)
            if index is not None
        )

    def with_cells(self, cells: Iterable[CheckResult]) -> SuiteRun:
        """Return the run with these results."""
        outcomes: dict[CheckOutcome, int] = {}
        results: dict[str, dict[str, tuple[int | None, int | None]]] = {}
        for cell in cells:
            outcome = CheckOutcome(cell.outcome, cell.reason)
            index = outcomes.setdefault(outcome, len(outcomes))
            checks = results.setdefault(cell.section, {})
            v0, v1 = checks.get(cell.check, (None, None))
            checks[cell.check] = (index, v1) if cell.generation == "V0" else (v0, index)
        return replace(self, outcomes=tuple(outcomes), results=results)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--format json``."""
        plain = codec.encode(self)
        del plain["outcomes"], plain["results"]
        return {**plain, "cells": codec.encode(self.cells)}

    @property
    def name(self) -> str:
        """Environment and device, so that a run on a GPU does not replace one on the simulated
        device."""
        return f"{self.environment} {self.device}"

    @property
    def vllm(self) -> Version:
        return version_of(self.versions["vllm"]) or Version("0")


class KnownFailure(Document, frozen=True):
    """An upstream failure that explains failed cells, from known.toml of the suite.

    ``checks``: patterns of "section: check". ``symptom``: pattern of the reason.
    """

    vllm: SpecifierSet
    checks: tuple[str, ...]
    symptom: str
    why: str
    generation: str = "*"
    device: str = "*"

    def __post_init__(self) -> None:
        try:
            re.compile(self.symptom)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"symptom is no regular expression: {error}") from None

    def explains(self, ran: SuiteRun, cell: CheckResult) -> bool:
        """Return whether version, engine generation, device, check and reason all match."""
        return (
            self.vllm.contains(ran.vllm, prereleases=True)
            and fnmatchcase(cell.generation, self.generation)
            and fnmatchcase(ran.device, self.device)
            and any(
                fnmatchcase(f"{cell.section}: {cell.check}", pattern) for pattern in self.checks
            )
            and patterns.search(self.symptom, cell.reason) is not None
        )


def read_report(name: str, report: Path) -> SuiteRun:
    """Read a JUnit report of the suite."""
    root = ET.parse(report).getroot()
    # Workers of pytest-xdist write to their tests what others write to the suite.
    properties = dict(_properties(root, ".//properties"))
    # pytest writes what fails after a failed test as another one, without properties.
    cases = [case for case in root.iter("testcase") if case.find("properties") is not None]
    cells = [_cell(case) for case in cases]
    if not cells or "device" not in properties:
        raise UsageError(
            f"{name}: the suite ran no test: see its output above; what is selected (-k) may match none"
        )
    versions = {
        key: value
        for key, value in json.loads(properties["versions"]).items()
        if key in ("vllm", *SHOWN)
    }
    machine = f"{platform.machine()}, Python {properties['python']}"
    gpus = _joined(
        {key.removeprefix(_GPU): value}
        for key, value in _properties(root, ".//testcase/properties")
        if key.startswith(_GPU)
    )
    day = time.strftime("%Y-%m-%d")
    return SuiteRun(name, properties["device"], versions, machine, day, gpus).with_cells(cells)


def _properties(element: ET.Element, path: str = "properties") -> Iterator[tuple[str, str]]:
    """Yield names and values."""
    for entry in element.iterfind(f"{path}/property"):
        yield entry.get("name", ""), entry.get("value", "")


def _cell(case: ET.Element) -> CheckResult:
    properties = dict(_properties(case))
    where = (properties["section"], properties["check"], properties["generation"])
    for tag, outcome in (("error", FAILED), ("failure", FAILED), ("skipped", ABSENT)):
        element = case.find(tag)
        if element is not None:
            message = element.get("message", "")
            text = message if outcome == ABSENT else f"{message}\n{element.text or ''}"
            return CheckResult(*where, outcome, _gist(text))
    return CheckResult(*where, PASSED)


def _gist(text: str) -> str:
    """Return the first line of a failure and every exception in it, truncated."""
    text = mask(text)
    exceptions = re.findall(r"\b[\w.]*(?:Error|Exception|Exceeded|Died)\b: [^\n]{1,200}", text)
    return " | ".join(dict.fromkeys([*text.splitlines()[:1], *exceptions]))[:1500]


class _KnownFailures(Document, frozen=True):
    known: tuple[KnownFailure, ...] = ()


def read_known(path: Path) -> tuple[KnownFailure, ...]:
    """Read the known upstream failures. Raises ``UsageError`` for an invalid file."""
    return codec.load(_KnownFailures, path, MAX_BYTES, what="a list of known failures").known


def unexplained(
    runs: Iterable[SuiteRun], known: Sequence[KnownFailure]
) -> list[tuple[SuiteRun, CheckResult]]:
    """Return the failed cells that no known failure explains."""
    return [
        (ran, cell)
        for ran in runs
        for cell in ran.cells
        if cell.outcome == FAILED and not any(one.explains(ran, cell) for one in known)
    ]


def suite_directory() -> Path:
    """Return the directory of the suite: beside the package in a checkout, inside it when
    installed."""
    place = shipped("conformance")
    if place.is_dir():
        return place
    raise UsageError(
        "this installation has no conformance suite: use a checkout, or a wheel of pytest-vllm-regress"
    )


def asks_for_gpu(pytest_args: Sequence[str]) -> bool:
    """Return whether these arguments run the suite on GPUs."""
    return any(argument in ON_GPU for argument in pytest_args)


def run_suite(
    name: str, suite: Path, pytest_args: Sequence[str] = (), *, record: Path | None = None
) -> SuiteRun:
    """Run the suite, or the part that ``pytest_args`` select, in one environment, which is built.

    ``record``: keeps each check when it has ended; what is in it is not run again. The caller
    removes it. pytest's output goes to standard error: standard output has the report. Raises
    ``UsageError`` if pytest ended before its last check.
    """
    gpu = asks_for_gpu(pytest_args)
    chosen = [arg.partition("=")[2] for arg in pytest_args if arg.startswith("--vllm-device=")]
    target = built_target(name, (chosen or ["gpu" if gpu else "auto"])[-1])
    assert target is not None
    with scratch() as folder:
        record = record or folder / "checks.jsonl"
        command = pytest_command(folder, suite, [suite], GPU_TIMEOUT_S if gpu else TIMEOUT_S)
        command += ["-p", check_record.__name__]
        command += [f"--vllm-env={name}", "--tb=short", *pytest_args]
        environment = {**pytest_environment(folder), check_record.RECORD: str(record)}
        status = run_command(command, environment, output=STDERR_FD)
        kept = check_record.open_checks(record).entries.values()
    if status not in _REACHED_THE_END or not kept:
        raise UsageError(
            f"{name}: pytest ended with status {status} after {len(kept)} checks: see its output above. "
            "What ended is kept: the same command goes on. What is selected (-k) may match none"
        )
    versions = {key: target.versions[key] for key in ("vllm", *SHOWN) if key in target.versions}
    machine = f"{platform.machine()}, Python {target.installed.python}"
    facts = _joined(check.gpu for check in kept)
    ran = SuiteRun(name, target.device, versions, machine, time.strftime("%Y-%m-%d"), facts)
    return ran.with_cells(map(_kept_cell, kept))


STDERR_FD = 2
_REACHED_THE_END = (0, 1, 5)
"""Exit statuses of pytest: all passed, some failed, nothing was left to run."""


def _kept_cell(check: check_record.KeptCheck) -> CheckResult:
    outcome = {"passed": PASSED, "skipped": ABSENT}.get(check.outcome, FAILED)
    reason = _gist(check.text) if check.text else ""
    return CheckResult(check.section, check.check, check.generation, outcome, reason)


def _joined(facts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return all values of each fact."""
    joined: dict[str, dict[str, None]] = {}
    for name, value in (item for one in facts for item in one.items()):
        joined.setdefault(name, {})[value] = None
    return {name: " | ".join(values) for name, values in joined.items()}


def open_runs(path: Path, *, fresh: bool = False) -> Store[SuiteRun]:
    """Return runs of the suite by their names, kept in a file."""
    return Store(path, SuiteRun, what="runs of the conformance suite", fresh=fresh)


def report(runs: Iterable[SuiteRun], known: Sequence[KnownFailure]) -> Report:
    """Return the outcomes of each run, and why checks failed."""
    counts, failed = [], []
    for ran in runs:
        outcomes = [cell.outcome for cell in ran.cells]
        numbers = [str(outcomes.count(outcome)) for outcome in (PASSED, ABSENT, FAILED)]
        counts.append((ran.name, str(ran.vllm), *numbers))
        for cell in ran.cells:
            if cell.outcome == FAILED:
                why = next((one.why for one in known if one.explains(ran, cell)), "not known")
                check = f"{ran.name}: {cell.generation} {cell.section}: {cell.check}"
                failed.append(f"{check}: {why}; {cell.reason[:200]}")
    table = Table(("environment", "vLLM", PASSED, ABSENT, FAILED), counts)
    return Report(sections=[Section(parts=[table, *([tuple(failed)] if failed else ())])])
