"""Results of the conformance suite: the outcome of each check on each engine generation, by
environment."""

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

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ...errors import UsageError
from ...util import patterns
from ...util.documents import load_toml
from ...util.masking import mask
from ...util.versions import version_of

MAX_BYTES = 16 * 1024 * 1024
SHOWN = ("torch", "transformers", "xgrammar", "llguidance", "outlines", "lm-format-enforcer", "ray")
_GPU = "vllm_gpu_"
PASSED, ABSENT, FAILED = "ok", "n/a", "FAIL"


@dataclasses.dataclass(frozen=True)
class CheckResult:
    """Outcome of one check on one engine generation: ok, n/a or FAIL; ``reason`` says why it is not
    ok."""

    section: str
    check: str
    generation: str
    outcome: str
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class SuiteRun:
    """A run of the suite in one environment on one device.

    ``versions``: by distribution. ``at``: the day. ``gpu``: properties of the GPUs, if any.
    ``whole``: False if only selected checks were run.
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
        """Environment and device, so that a run on a GPU does not replace one on the simulated
        device."""
        return self.environment, self.device

    @property
    def vllm(self) -> Version:
        return version_of(self.versions["vllm"]) or Version("0")


@dataclasses.dataclass(frozen=True)
class Fault:
    """An upstream fault that explains failed cells, from known.toml of the suite."""

    vllm: SpecifierSet
    checks: tuple[str, ...]
    symptom: str
    why: str
    generation: str = "*"
    device: str = "*"

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


def merged(before: SuiteRun, after: SuiteRun) -> SuiteRun:
    """Return ``before`` with the cells of ``after`` in place of the same ones.

    If other versions are installed now, return ``after``.
    """
    if (before.versions, before.device) != (after.versions, after.device):
        return after
    cells = {
        (cell.section, cell.check, cell.generation): cell for cell in (*before.cells, *after.cells)
    }
    gpu = {**before.gpu, **after.gpu}
    return dataclasses.replace(
        after, cells=tuple(cells.values()), gpu=gpu, whole=before.whole or after.whole
    )


def add(runs: dict[tuple[str, str], SuiteRun], run: SuiteRun) -> None:
    """Add ``run`` to ``runs``.

    A whole run replaces an earlier one, a partial run is merged into it.
    """
    before = runs.get(run.key)
    runs[run.key] = run if run.whole or before is None else merged(before, run)


def read_report(name: str, report: Path) -> SuiteRun:
    """Read a JUnit report of the suite."""
    root = ET.parse(report).getroot()
    properties = {
        prop.get("name", ""): prop.get("value", "")
        for prop in root.iterfind("./testsuite/properties/property")
    }
    cells = tuple(_cell(case) for case in root.iter("testcase"))
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
    return SuiteRun(
        name,
        properties["device"],
        versions,
        machine,
        time.strftime("%Y-%m-%d"),
        cells,
        _gpu_of(root),
    )


def _gpu_of(root: ET.Element) -> dict[str, str]:
    """Return the properties of the GPUs that the tests report."""
    values_by_name: dict[str, dict[str, None]] = {}
    for element in root.iterfind(".//testcase/properties/property"):
        name = element.get("name", "")
        if name.startswith(_GPU):
            values_by_name.setdefault(name.removeprefix(_GPU), {})[element.get("value", "")] = None
    return {name: " | ".join(values) for name, values in values_by_name.items()}


def _cell(case: ET.Element) -> CheckResult:
    properties = {
        prop.get("name", ""): prop.get("value", "")
        for prop in case.iterfind("./properties/property")
    }
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


def read_faults(path: Path) -> tuple[Fault, ...]:
    """Read the known upstream faults. Raises ``UsageError`` for an invalid file."""
    listed = (
        load_toml(path, MAX_BYTES, what="a list of faults").get("fault", [])
        if path.exists()
        else []
    )
    try:
        faults = tuple(
            Fault(
                **{**table, "vllm": SpecifierSet(table["vllm"]), "checks": tuple(table["checks"])}
            )
            for table in listed
        )
        for fault in faults:
            re.compile(fault.symptom)
    except (ValueError, TypeError, KeyError, re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"{path}: a list of faults cannot be read from it: {error!r}") from None
    return faults


def unexplained(
    runs: Iterable[SuiteRun], faults: Sequence[Fault]
) -> list[tuple[SuiteRun, CheckResult]]:
    """Return the failed cells that no known fault explains."""
    return [
        (ran, cell)
        for ran in runs
        for cell in ran.cells
        if cell.outcome == FAILED and not any(f.explains(ran, cell) for f in faults)
    ]
