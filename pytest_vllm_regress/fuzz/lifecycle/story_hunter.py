"""The hunter of ``vllm-regress fuzz lifecycle``: stories of what happens to a server.

A part is one story; what is wrong with it and was not seen before is shrunk to the fewest actions.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from hypothesis import strategies as st

from ...engines.server import Server
from ...engines.session import Session
from ...errors import ChildError, Unsupported
from ...surveys.states.requests import DRAIN_S, paced
from ...util.codec import Document, Meta, replace
from ..drawing import drawn
from ..finding import Finding, Problem
from ..hunter import CampaignPlan, Hunter, Reply
from ..kept import Kept, kept_engine
from ..reduce import Effort, smaller_documents
from .story_run import HEALTH_S, StoryRun

_REQUIRED: Mapping[str, Any] = {"enable_lora": True, "max_lora_rank": 8}
_OPTIONAL: Mapping[str, Any] = {"enable_sleep_mode": True, "shutdown_timeout": DRAIN_S}
"""Engine arguments that not every release has."""


class Action(enum.StrEnum):
    """Something that happens to a server.

    An action that is not possible in the server's state is skipped.
    """

    STREAM = "stream"
    ASK = "ask"
    REPEAT = "ask the same again"
    ABORT = "abort"
    RESET = "reset the prefix cache"
    SLEEP = "sleep"
    SLEEP_BUSY = "sleep under load"
    WAKE_WEIGHTS = "wake up the weights alone"
    WAKE = "wake up"
    PAUSE = "pause"
    PAUSE_WAIT = "pause after the running requests"
    PAUSE_KEEP = "pause and keep the running requests"
    RESUME = "resume"
    LOAD = "load an adapter"
    REPLACE = "replace the adapter"
    UNLOAD = "unload the adapter"
    STOP = "stop the core"
    CONTINUE = "continue the core"
    KILL_CORE = "kill the core"
    KILL_WORKER = "kill a worker"
    KILL_SERVER = "kill the server"
    TERM = "SIGTERM"
    TERM_TWICE = "SIGTERM twice"


_REQUESTS = (Action.STREAM, Action.STREAM, Action.ASK, Action.REPEAT, Action.ABORT)
_RESTS = (Action.SLEEP, Action.SLEEP_BUSY, Action.PAUSE, Action.PAUSE_WAIT, Action.PAUSE_KEEP)
_ADAPTERS = (Action.LOAD, Action.REPLACE, Action.UNLOAD)
GENTLE = (
    *_REQUESTS,
    Action.RESET,
    *_RESTS,
    Action.WAKE_WEIGHTS,
    Action.WAKE,
    Action.RESUME,
    *_ADAPTERS,
)
ENDS = (Action.KILL_CORE, Action.KILL_WORKER, Action.KILL_SERVER, Action.TERM, Action.TERM_TWICE)
"""Actions after which the server is not what it was."""
MAX_GENTLE = 7


class Story(Document, frozen=True, omit_defaults=False):
    """What happens to a server with this number of workers."""

    actions: Annotated[tuple[Action, ...], Meta(min_length=1, max_length=50)]
    workers: Annotated[int, Meta(ge=1, le=2)] = 1

    @property
    def is_gentle(self) -> bool:
        """Whether the server should be as before afterwards."""
        return not {*ENDS, Action.STOP} & {*self.actions}

    def to_text(self) -> str:
        return f"{', '.join(self.actions)} ({self.workers} worker{'s' * (self.workers > 1)})"


@functools.cache
@st.composite
def stories(draw: st.DrawFn) -> Story:
    """Draw gentle actions, in one of three stories a stop of the core, and in five of seven an end.

    Half of the stories mix all kinds of actions; a quarter concentrate on adapters, and a quarter
    on sleep and pauses.
    """
    themes = (
        GENTLE,
        GENTLE,
        (*_REQUESTS, *_ADAPTERS),
        (*_REQUESTS, *_RESTS, Action.WAKE_WEIGHTS, Action.WAKE, Action.RESUME),
    )
    actions = draw(
        st.lists(st.sampled_from(draw(st.sampled_from(themes))), min_size=1, max_size=MAX_GENTLE)
    )
    if draw(st.integers(1, 3)) == 1:
        actions += [Action.STOP, *draw(st.sampled_from(((), (Action.CONTINUE,))))]
    end = draw(st.sampled_from((*ENDS, None, None)))
    if end is not None:
        actions += [Action.STREAM] * draw(st.integers(0, 1)) + [end]
    workers = 2 if end is Action.KILL_WORKER or draw(st.integers(1, 6)) == 1 else 1
    return Story(tuple(actions), workers)


def smaller_stories(story: Story, problem: Problem) -> Iterator[Story]:
    """Yield stories with fewer workers or actions: first without what came after the problem was
    noticed, then without everything before it."""
    noticed = story.actions[: problem.at]
    for actions in filter(None, (noticed, noticed[-1:])):
        yield replace(story, actions=actions)
    yield from smaller_documents(story)


class StoryFinding(Finding, frozen=True, tag="lifecycle"):
    """A story whose history is wrong."""

    question: Story

    @property
    def subject(self) -> str:
        return "lifecycle"

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
            problems = StoryRun(server).run(story.actions)
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
    lane = StoryServers
    right = "the history is as it should be"

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
