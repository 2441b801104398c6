"""Findings about the life of a server, as files that ``vllm-regress replay`` runs again."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...util.masking import mask
from ..finding_file import FindingFile, Upstream, hyphenated, read
from .checker import StoryChecker
from .history import Problem
from .story import Action, Story

_SCHEMA = "story_finding_schema.json"


@dataclasses.dataclass(frozen=True)
class StoryFinding(FindingFile):
    """A story whose history is wrong."""

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
        digest = hashlib.sha256(
            f"{self.problem.kind}: {self.story.to_text()}".encode()
        ).hexdigest()[:6]
        return f"lifecycle-{hyphenated(self.problem.kind)}-{digest}.json".lower()

    def details(self) -> dict[str, Any]:
        return {
            "story": {"actions": list(self.story.actions), "workers": self.story.workers},
            "problem": {"kind": self.problem.kind, "words": mask(self.problem.words)[:4000]},
        }


def is_story_finding(document: object) -> bool:
    """Return whether a document is a finding about the life of a server."""
    return isinstance(document, dict) and "story" in document


def load(path: Path) -> StoryFinding:
    """Read and validate a file. Raises ``UsageError`` that lists what is wrong with it."""
    document, shared = read(path, "lifecycle", _SCHEMA)
    story = document["story"]
    return StoryFinding(
        story=Story(tuple(map(Action, story["actions"])), story["workers"]),
        problem=Problem(**document["problem"]),
        **shared,
    )


def replay(finding: StoryFinding, checker: StoryChecker) -> tuple[str, str]:
    """Let the story happen again. Return STILL FAILS or FIXED, and what was observed."""
    problems = checker.run(finding.story)
    if same := [one for one in problems if one.kind == finding.problem.kind]:
        return "STILL FAILS", f"{same[0].kind}: {same[0].words}"
    if not problems:
        return "FIXED", "the history is as it should be"
    return "STILL FAILS", f"in another way: {problems[0].kind}: {problems[0].words}"
