"""Result files: versioned JSON (``result_schema.json``), written by the plugin and by
``vllm-regress run``."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from .._version import __version__
from ..errors import UsageError
from ..util.documents import load_json, parse_json
from ..util.files import append_line, read_lines, write_atomically
from ..util.masking import masker
from ..util.text import truncate_middle
from ..util.validation import format_value, problems
from .observation import Observation
from .symptom import Match
from .verdict import Verdict

SCHEMA_VERSION = 2
MAX_FILE_BYTES = 256 * 1024 * 1024
MAX_REASON = 4000
MAX_SYMPTOM = 2000
MAX_DOSSIER = 100_000


@dataclasses.dataclass(frozen=True)
class TestResult:
    """Outcome of one test in one environment.

    Texts come masked from the caller and are truncated when written. ``started_at``: seconds since
    the epoch.
    ``control``: outcome of the control leg ("passed", "failed"), empty if none was run.
    ``match``: where the symptom was found. ``observation``: what the subject leg showed; it can be
    judged again while the fingerprint of the case's tests and probe is ``code``.
    ``gpu``: what the engine ran on: card, capability, driver, CUDA, modes, attention backend, start
    method of its process.
    ``node``: the remote machine that ran the test: name, machine, processor, kernel, Python,
    driver; empty if it ran locally.
    ``not_expected_because``: why a verdict that is expected by itself is not expected here
    (evidence, --vllm-fail-on-known).
    """

    __test__: ClassVar[bool] = False  # not a pytest class

    case_id: str
    test: str
    verdict: Verdict
    reason: str
    device: str
    environment: str
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    started_at: float = 0.0
    duration_s: float = 0.0
    variant: str | None = None
    symptom: str = ""
    dossier: str = ""
    command: str = ""
    seed: int | None = None
    control: str = ""
    not_expected_because: str = ""
    match: Match | None = None
    observation: Observation | None = None
    code: str = ""
    gpu: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    node: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)

    @property
    def expected(self) -> bool:
        """Whether this result leaves the run green."""
        return self.verdict.expected and not self.not_expected_because

    @property
    def ended_at(self) -> float:
        """Return the end, in seconds since the epoch."""
        return self.started_at + self.duration_s

    def to_json(self) -> dict[str, Any]:
        """Return plain, truncated values for a result file."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        node = dict(plain.pop("node"))
        return (
            plain
            | ({"node": node} if node else {})
            | {
                "verdict": self.verdict.value,
                "expected": self.expected,
                "versions": dict(self.versions),
                "gpu": dict(self.gpu),
                "reason": truncate_middle(self.reason, MAX_REASON),
                "symptom": truncate_middle(self.symptom, MAX_SYMPTOM),
                "dossier": truncate_middle(self.dossier, MAX_DOSSIER),
                "match": self.match and self.match.to_json(),
                "observation": self.observation and self.observation.to_json(),
            }
        )

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> TestResult:
        """Create it from what ``to_json`` returned; the caller has checked ``plain`` against the
        schema."""
        values = {name: value for name, value in plain.items() if name != "expected"}
        match, observation = plain.get("match"), plain.get("observation")
        return cls(
            **{
                **values,
                "verdict": Verdict(plain["verdict"]),
                "match": match and Match.from_json(match),
                "observation": observation and Observation.from_json(observation),
            }
        )


@dataclasses.dataclass(frozen=True)
class RunResult:
    """Outcome of a run.

    ``problems``: errors that belong to no verdict; a run with problems is red.
    """

    results: tuple[TestResult, ...] = ()
    problems: tuple[str, ...] = ()
    tool_version: str = __version__

    @property
    def as_expected(self) -> bool:
        """Whether there are results, all as expected, and no problems."""
        return (
            bool(self.results)
            and not self.problems
            and all(result.expected for result in self.results)
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values for a result file."""
        return {
            "schema": SCHEMA_VERSION,
            "tool_version": self.tool_version,
            "results": [result.to_json() for result in self.results],
            "problems": [truncate_middle(text, MAX_REASON) for text in self.problems],
        }


def write_results(path: Path, run: RunResult) -> None:
    """Write ``path`` atomically. Raises ``UsageError`` if it cannot be written."""
    write_atomically(
        path, json.dumps(run.to_json(), indent=1, sort_keys=True, ensure_ascii=True) + "\n"
    )


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
    required = ("versions", "started_at", "duration_s")
    defaults = {
        field.name: {} if field.default is dataclasses.MISSING else field.default
        for field in dataclasses.fields(TestResult)
        if field.name not in required
        and (
            field.default is not dataclasses.MISSING
            or field.default_factory is not dataclasses.MISSING
        )
    }
    return {
        name: value
        for name, value in result.items()
        if name not in defaults or value != defaults[name]
    }


def read_results(path: Path) -> RunResult:
    """Read a result file and mask secrets in it.

    Raises ``UsageError`` that names file and key for everything invalid.
    """
    return run_from_document(load_json(path, MAX_FILE_BYTES, what="a result file"), str(path))


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
    invalid = _version_problem(document) or problems(document, "result_schema.json")
    invalid = invalid or _contradictions(document["results"])
    if invalid:
        raise UsageError("\n".join(f"{where}: {line}" for line in invalid))
    document = hide_secrets(document)
    return RunResult(
        results=tuple(TestResult.from_json(result) for result in document["results"]),
        problems=tuple(document.get("problems", ())),
        tool_version=document["tool_version"],
    )


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


def _version_problem(document: object) -> list[str]:
    if not isinstance(document, dict) or "schema" not in document:
        return ["not a result file of vllm-regress: no key schema"]
    if "verdicts" in document and "results" not in document:
        return [
            "not a result file but the table of verdicts, which `vllm-regress report --write` writes. Give a file of `run --out`"
        ]
    if document["schema"] != SCHEMA_VERSION:
        version = format_value(document["schema"])
        return [
            f"schema = {version}: this vllm-regress reads {SCHEMA_VERSION}. Read the file with the version that wrote it, "
            "or run the cases again"
        ]
    return []


def _contradictions(results: list[dict[str, Any]]) -> list[str]:
    return [
        f"results[{index}].expected = {result['expected']}: contradicts verdict {result['verdict']}"
        + (" and not_expected_because" if result.get("not_expected_because") else "")
        for index, result in enumerate(results)
        if result["expected"] != TestResult.from_json(result).expected
    ]
