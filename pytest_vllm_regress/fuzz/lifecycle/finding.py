"""Findings about the life of a server, as files that ``vllm-regress replay`` runs again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...util.documents import load_json
from ...util.files import write_atomically
from ...util.masking import mask
from ...util.validation import problems as schema_problems
from ..upstream_search import Upstream
from .checker import StoryChecker
from .history import Problem
from .story import Action, Story

FORMAT = 1
MAX_BYTES = 1 << 20
_SCHEMA = "story_finding_schema.json"


@dataclasses.dataclass(frozen=True)
class StoryFinding:
    """A story whose history is wrong. ``releases``: answer of a replay by version of vLLM."""

    environment: str
    versions: Mapping[str, str]
    story: Story
    problem: Problem
    seed: int = 0
    releases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    upstream: Upstream = dataclasses.field(default_factory=Upstream)

    @property
    def name(self) -> str:
        """File name: kind of problem and a short digest of the story."""
        kind = "".join(letter if letter.isalnum() else "-" for letter in self.problem.kind)
        digest = hashlib.sha256(f"{self.problem.kind}: {self.story.to_text()}".encode()).hexdigest()[:6]
        return f"lifecycle-{kind}-{digest}.json".lower()

    def to_json(self) -> dict[str, Any]:
        """Return the file's content as a JSON document (schema: ``story_finding_schema.json``)."""
        return {
            "format": FORMAT,
            "command": f"vllm-regress replay {self.name}",
            "environment": self.environment,
            "versions": dict(self.versions),
            "seed": self.seed,
            "story": {"actions": list(self.story.actions), "workers": self.story.workers},
            "problem": {"kind": self.problem.kind, "words": mask(self.problem.words)[:4000]},
            "releases": dict(self.releases),
            "upstream": dataclasses.asdict(self.upstream),
        }

    def save(self, folder: Path) -> Path:
        """Write the file and return its path."""
        path = folder / self.name
        write_atomically(path, json.dumps(self.to_json(), indent=1) + "\n")
        return path


def is_story_finding(document: object) -> bool:
    """Return whether a document is a finding about the life of a server."""
    return isinstance(document, dict) and "story" in document


def load(path: Path) -> StoryFinding:
    """Read and validate a file. Raises ``UsageError`` that lists what is wrong with it."""
    document = load_json(path, MAX_BYTES, what="a finding of `vllm-regress fuzz lifecycle`")
    if errors := schema_problems(document, _SCHEMA):
        raise UsageError("\n".join(f"{path}: {error}" for error in errors))
    story, upstream = document["story"], document["upstream"]
    return StoryFinding(
        document["environment"],
        document["versions"],
        Story(tuple(map(Action, story["actions"])), story["workers"]),
        Problem(**document["problem"]),
        document["seed"],
        document["releases"],
        Upstream(tuple(upstream["words"]), tuple(upstream["reports"])),
    )


def replay(finding: StoryFinding, checker: StoryChecker) -> tuple[str, str]:
    """Let the story happen again. Return STILL FAILS or FIXED, and what was observed."""
    problems = checker.run(finding.story)
    if same := [one for one in problems if one.kind == finding.problem.kind]:
        return "STILL FAILS", f"{same[0].kind}: {same[0].words}"
    if not problems:
        return "FIXED", "the history is as it should be"
    return "STILL FAILS", f"in another way: {problems[0].kind}: {problems[0].words}"
