"""Findings about pairs of configurations, as files that ``vllm-regress replay`` asks again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...util.masking import mask
from ..finding_file import FindingFile, Upstream, hyphenated, read
from .checker import PairChecker
from .observed import Observed
from .oracle import Difference
from .pairs import pairs_named
from .request import Question

_SCHEMA = "engine_finding_schema.json"


@dataclasses.dataclass(frozen=True)
class EngineFinding(FindingFile):
    """Two configurations that do not agree.

    Attributes:
        pair: name of the pair.
        against: the other environment of the pair ``release``.
    """

    pair: str
    environment: str
    versions: Mapping[str, str]
    question: Question
    difference: Difference
    against: str = ""
    seed: int = 0
    releases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    upstream: Upstream = dataclasses.field(default_factory=Upstream)

    @property
    def observed(self) -> Observed:
        return Observed(self.question, self.difference)

    @property
    def name(self) -> str:
        """File name: pair, kind of difference and a short digest of the question."""
        key = json.dumps([self.pair, self.against, self.difference.kind, self.question.to_json()])
        kind = hyphenated(self.difference.kind)
        return f"engines-{self.pair}-{kind}-{hashlib.sha256(key.encode()).hexdigest()[:6]}.json".lower()

    def details(self) -> dict[str, Any]:
        return {
            "pair": self.pair,
            "against": self.against,
            "question": self.question.to_json(),
            "difference": {
                "kind": self.difference.kind,
                "words": mask(self.difference.words)[:4000],
            },
        }


def is_engine_finding(document: object) -> bool:
    """Return whether a document is a finding about a pair of configurations."""
    return isinstance(document, dict) and "pair" in document


def load(path: Path) -> EngineFinding:
    """Read and validate a file. Raises ``UsageError`` that lists what is wrong with it."""
    document, shared = read(path, "engines", _SCHEMA)
    return EngineFinding(
        pair=document["pair"],
        question=Question.of_json(document["question"]),
        difference=Difference(**document["difference"]),
        against=document["against"],
        **shared,
    )


def replay(finding: EngineFinding, checker: PairChecker) -> tuple[str, str]:
    """Ask the question again. Return STILL FAILS, FIXED or CANNOT RUN, and what was observed.

    The answer is FIXED only if both sides agree.
    """
    (pair,) = pairs_named((finding.pair,), finding.against)
    if words := checker.refusal(pair):
        return "CANNOT RUN", words
    lacking = {
        name: words
        for name, words in checker.lacking(pair).items()
        if name in finding.question.traits
    }
    if lacking:
        return "CANNOT RUN", next(iter(lacking.values()))
    seen = checker.ask(pair, finding.question)
    if same := [one for one in seen if one.difference.kind == finding.difference.kind]:
        return "STILL FAILS", same[0].difference.words
    if not seen:
        return "FIXED", "both sides agree"
    return "STILL FAILS", f"in another way: {seen[0].difference.kind}: {seen[0].difference.words}"
