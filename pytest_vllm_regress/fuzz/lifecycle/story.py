"""Stories: sequences of actions on a server. They are drawn from a seed and reduced."""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator
from typing import Annotated

from hypothesis import strategies as st

from ...util.codec import Document, Meta, replace
from ..finding import Problem
from ..reduce import smaller_documents


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
