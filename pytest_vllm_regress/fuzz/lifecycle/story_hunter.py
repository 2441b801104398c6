"""The hunter of ``vllm-regress fuzz lifecycle``: stories of what happens to a server.

A part is one story; what is wrong with it and was not seen before is shrunk to the fewest actions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...engines.server import Server
from ...engines.session import Session
from ...errors import ChildError, Unsupported
from ...surveys.states.requests import DRAIN_S, paced
from ..drawing import drawn
from ..finding import Finding, Problem, hyphenated
from ..hunter import CampaignPlan, Hunter, Reply, versions_with_vllm
from ..kept import Kept, kept_engine
from ..reduce import Effort
from .story import Story, smaller_stories, stories
from .story_run import HEALTH_S, StoryRun

_REQUIRED: Mapping[str, Any] = {"enable_lora": True, "max_lora_rank": 8}
_OPTIONAL: Mapping[str, Any] = {"enable_sleep_mode": True, "shutdown_timeout": DRAIN_S}
"""Engine arguments that not every release has."""


class StoryFinding(Finding, frozen=True, tag="lifecycle"):
    """A story whose history is wrong."""

    question: Story

    @property
    def title(self) -> str:
        return f"lifecycle-{hyphenated(self.problem.kind)}"

    @property
    def identity(self) -> object:
        return f"{self.problem.kind}: {self.question.to_text()}"


class StoryServers:
    """Runs stories, with one server at a time. One that a story leaves as it was is used for the
    next one."""

    def __init__(self, session: Session, environment: str) -> None:
        self._session, self._environment = session, environment
        self._kept: Kept[Server] | None = None
        self._workers = 0

    def run(self, story: Story) -> list[Problem]:
        """Let a story happen to a server. Returns what is wrong with its history."""
        if self._workers != story.workers:
            self.close()  # one at a time
            self._kept, self._workers = self._start(story.workers), story.workers
        assert self._kept is not None
        server = self._kept.get()
        try:
            problems = StoryRun(server).run(story)
        except ChildError as error:
            words = str(error.args[0]).partition("\n")[0][:300]
            problems = [Problem("the server is not there", words)]
        if problems or not story.is_gentle:
            self._kept.drop()
        return problems

    def close(self) -> None:
        """Stop the server."""
        if self._kept is not None:
            self._kept.drop()

    def _start(self, workers: int) -> Kept[Server]:
        """Start a server with all of ``_OPTIONAL`` that this vLLM has.

        What it lacks is refused before anything starts, so trying costs little.
        """
        target = self._session.target(self._environment)
        for lacking in ((), *((name,) for name in _OPTIONAL), tuple(_OPTIONAL)):
            arguments = {name: value for name, value in _OPTIONAL.items() if name not in lacking}
            spec = paced(
                extra={**_REQUIRED, **arguments},
                server_options={"enable_prompt_tokens_details": True},
                env={"VLLM_SERVER_DEV_MODE": "1", "VLLM_HEALTH_CHECK_TIMEOUT": str(HEALTH_S)},
                tensor_parallel_size=workers,
            )
            kept = kept_engine(self._session, target, spec, "serve", "fuzz lifecycle")
            try:
                kept.get()
                return kept
            except Unsupported:
                if len(lacking) == len(_OPTIONAL):
                    raise
        raise AssertionError("the last try raises")


class StoryHunter(Hunter[StoryServers, Story, Story, StoryFinding]):
    """Lets stories happen."""

    kind = StoryFinding
    right = "the history is as it should be"

    @classmethod
    def of(cls, sessions: Sequence[Session], environment: str) -> StoryHunter:
        versions = versions_with_vllm(sessions[0], environment)
        lanes = [StoryServers(session, environment) for session in sessions]
        return cls(lanes, environment, versions)

    def parts(self, plan: CampaignPlan, number: int) -> Iterator[Story]:
        return iter(drawn(stories(), plan.examples, plan.seed_of(number)))

    def label(self, part: Story) -> str:
        return part.to_text()

    def draw(self, part: Story, plan: CampaignPlan, number: int) -> list[Story]:
        return [part]

    def ask(
        self, lane: StoryServers, part: Story, questions: Sequence[Story]
    ) -> list[Reply[Story]]:
        return [Reply.of(story, lane.run(story)) for story in questions]

    def simplify(self, part: Story, question: Story, problem: Problem) -> Iterator[Story]:
        return smaller_stories(question, problem)

    def effort(self, problem: Problem) -> Effort:
        return Effort(40)

    def describe(self, finding: StoryFinding) -> Iterator[str]:
        yield finding.question.to_text()

    def part_of(self, finding: StoryFinding) -> Story:
        return finding.question


HUNTER = StoryHunter
