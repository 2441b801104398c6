"""The hunter of ``vllm-regress fuzz lifecycle``: stories of what happens to a server.

A part is one story; what is wrong with it and was not seen before is shrunk to the fewest actions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...engines.session import Session
from ..finding import Finding, Problem, hyphenated
from ..hunter import CampaignPlan, Hunter, versions_with_vllm
from ..reduce import Effort
from .story import Story, drawn, smaller_stories
from .story_servers import StoryServers


class StoryFinding(Finding, frozen=True, tag="lifecycle"):
    """A story whose history is wrong."""

    question: Story

    @property
    def title(self) -> str:
        return f"lifecycle-{hyphenated(self.problem.kind)}"

    @property
    def identity(self) -> object:
        return f"{self.problem.kind}: {self.question.to_text()}"


class StoryHunter(Hunter[StoryServers, Story, Story, Sequence[Problem], StoryFinding]):
    """Lets stories happen."""

    kind = StoryFinding
    right = "the history is as it should be"

    @classmethod
    def of(cls, sessions: Sequence[Session], environment: str) -> StoryHunter:
        versions = versions_with_vllm(sessions[0], environment)
        lanes = [StoryServers(session, environment) for session in sessions]
        return cls(lanes, environment, versions)

    def parts(self, plan: CampaignPlan, number: int) -> Iterator[Story]:
        return iter(drawn(plan.examples, plan.seed * 1000 + number))

    def label(self, part: Story) -> str:
        return part.to_text()

    def draw(self, part: Story, plan: CampaignPlan, number: int) -> list[Story]:
        return [part]

    def ask(
        self, lane: StoryServers, part: Story, questions: Sequence[Story]
    ) -> list[Sequence[Problem]]:
        return [lane.run(story) for story in questions]

    def simplify(self, part: Story, question: Story, problem: Problem) -> Iterator[Story]:
        return smaller_stories(question, problem)

    def effort(self, problem: Problem) -> Effort:
        return Effort(40)

    def finding(self, part: Story, question: Story, problem: Problem) -> StoryFinding:
        return StoryFinding(
            environment=self.environment,
            versions=self.known_versions(),
            question=question,
            problem=problem,
        )

    def describe(self, finding: StoryFinding) -> Iterator[str]:
        yield finding.question.to_text()

    def part_of(self, finding: StoryFinding) -> Story:
        return finding.question


HUNTER = StoryHunter
