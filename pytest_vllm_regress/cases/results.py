"""Result files: versioned JSON (``result_schema.json``), written by the plugin and by ``vllm-regress run``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from .._version import __version__
from ..errors import UsageError
from ..util.documents import load_json
from ..util.files import write_whole
from ..util.masking import masker
from ..util.text import bounded
from ..util.validation import problems, shown
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
    """The verdict of one test in one environment.

    Texts come masked from the caller and are cut to a bound when written. ``started_at`` is in seconds since the epoch.
    ``control``: what the control leg did ("passed", "failed"), empty where none was run.
    ``match``: where the symptom was found. ``observation``: what the test's own leg saw; it can be judged again while the case's tests and
    probe have the fingerprint ``code``.
    ``gpu``: on a GPU, what the engine ran on: card, capability, driver, CUDA, modes, attention backend, how its process was started.
    ``node``: on another machine than the one that asked, which: its name, machine, processor, kernel, Python, driver.
    ``not_expected_because``: why a verdict that is fine by itself is not fine here (evidence, --vllm-fail-on-known).
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
        """False: the run is red because of this result."""
        return self.verdict.expected and not self.not_expected_because

    @property
    def ended_at(self) -> float:
        """Seconds since the epoch."""
        return self.started_at + self.duration_s

    def to_json(self) -> dict[str, Any]:
        """Plain values, bounded; what a result file holds."""
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
                "reason": bounded(self.reason, MAX_REASON),
                "symptom": bounded(self.symptom, MAX_SYMPTOM),
                "dossier": bounded(self.dossier, MAX_DOSSIER),
                "match": self.match and self.match.to_json(),
                "observation": self.observation and self.observation.to_json(),
            }
        )

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> TestResult:
        """The result that ``to_json`` wrote; the caller has checked ``plain`` against the schema."""
        values = {name: value for name, value in plain.items() if name != "expected"}
        match, seen = plain.get("match"), plain.get("observation")
        return cls(
            **{
                **values,
                "verdict": Verdict(plain["verdict"]),
                "match": match and Match.from_json(match),
                "observation": seen and Observation.from_json(seen),
            }
        )


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What a run found. ``problems`` are faults that belong to no verdict; a run with problems is red."""

    results: tuple[TestResult, ...] = ()
    problems: tuple[str, ...] = ()
    tool_version: str = __version__

    @property
    def as_expected(self) -> bool:
        """Something was found, all of it was expected, and nothing went wrong beside."""
        return bool(self.results) and not self.problems and all(result.expected for result in self.results)

    def to_json(self) -> dict[str, Any]:
        """Plain values; what a result file holds."""
        return {
            "schema": SCHEMA_VERSION,
            "tool_version": self.tool_version,
            "results": [result.to_json() for result in self.results],
            "problems": [bounded(text, MAX_REASON) for text in self.problems],
        }


def write(path: Path, run: RunResult) -> None:
    """Write ``path`` whole or not at all. Raises ``UsageError`` when the place cannot be written."""
    write_whole(path, json.dumps(run.to_json(), indent=1, sort_keys=True, ensure_ascii=True) + "\n")


def read(path: Path) -> RunResult:
    """Read a result file; secrets in it are hidden, whoever wrote it.

    Raises ``UsageError`` that names file and key for everything that does not fit.
    """
    return from_document(load_json(path, MAX_FILE_BYTES, what="a result file"), str(path))


def from_document(document: Any, where: str) -> RunResult:
    """The run that ``to_json`` wrote; secrets in it are hidden. Raises ``UsageError`` as ``read`` does; ``where`` it stands, for messages."""
    found = _version_problem(document) or problems(document, "result_schema.json")
    found = found or _contradictions(document["results"])
    if found:
        raise UsageError("\n".join(f"{where}: {line}" for line in found))
    document = hide_secrets(document)
    return RunResult(
        results=tuple(TestResult.from_json(each) for each in document["results"]),
        problems=tuple(document.get("problems", ())),
        tool_version=document["tool_version"],
    )


def merge(runs: Iterable[RunResult]) -> RunResult:
    """All results of several runs. Of two results for the same test, environment and device the later one counts."""
    latest: dict[tuple[str, str, str, str], TestResult] = {}
    found: dict[str, None] = {}
    for run in runs:
        found.update(dict.fromkeys(run.problems))
        for result in run.results:
            key = (result.case_id, result.test, result.environment, result.device)
            known = latest.get(key)
            if known is None or result.ended_at >= known.ended_at:
                latest[key] = result
    return RunResult(tuple(latest.values()), tuple(found))


def hide_secrets(document: Any) -> Any:
    """The document with every text in it masked by what is known of secrets now."""
    return masked(document, masker())


def masked(value: Any, hide: Callable[[str], str]) -> Any:
    """The document with every text in it masked."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, (list, tuple)):
        return [masked(each, hide) for each in value]
    return {masked(key, hide): masked(each, hide) for key, each in value.items()} if isinstance(value, dict) else value


def _version_problem(document: object) -> list[str]:
    if not isinstance(document, dict) or "schema" not in document:
        return ["not a result file of vllm-regress: no key schema"]
    if document["schema"] != SCHEMA_VERSION:
        given = shown(document["schema"])
        return [
            f"schema = {given}: this vllm-regress reads {SCHEMA_VERSION}. Read the file with the version that wrote it, "
            "or run the cases again"
        ]
    return []


def _contradictions(results: list[dict[str, Any]]) -> list[str]:
    return [
        f"results[{index}].expected = {each['expected']}: contradicts verdict {each['verdict']}"
        + (" and not_expected_because" if each.get("not_expected_because") else "")
        for index, each in enumerate(results)
        if each["expected"] != TestResult.from_json(each).expected
    ]
