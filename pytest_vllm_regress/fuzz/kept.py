"""An engine, a server or a process that is kept up: started when it is first asked, and again after
it has ended or was given up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..engines.processes.child import Child
from ..engines.running import Running
from ..engines.session import Session
from ..engines.spec import EngineSpec, Front
from ..engines.target import Target
from ..util.deadline import Deadline
from .finding import MAX_WORDS, Problem

T = TypeVar("T")


@dataclass
class Kept(Generic[T]):
    """Something that is kept up. ``alive``: whether it can still be asked."""

    start: Callable[[], T]
    stop: Callable[[T], object]
    alive: Callable[[T], bool]
    running: T | None = None

    def get(self) -> T:
        """Return it, started if it does not run."""
        if self.running is None or not self.alive(self.running):
            self.drop()
            self.running = self.start()
        return self.running

    def drop(self) -> None:
        """Stop it. The next question gets a new one."""
        running, self.running = self.running, None
        if running is not None:
            self.stop(running)


def kept_engine(
    session: Session, target: Target, spec: EngineSpec, front: Front, user: str
) -> Kept[Any]:
    """Return an engine or a server of a session.

    Whether it works is not checked before a question, which the session would do by a request.
    """
    return Kept(
        lambda: session.start(front, target, spec, user=user, fresh=False),
        lambda engine: session.drop(target, spec, front),
        lambda engine: bool(engine.child.alive),
    )


def held_requests(engine: Running | None) -> Iterator[Problem]:
    """Yield that an engine keeps requests that have ended, if it does."""
    error = engine.held_requests() if engine is not None else None
    if error is not None:
        words = str(error)[:MAX_WORDS]
        yield Problem("requests are kept that have ended", words, ", ".join(error.containers)[:500])


def kept_child(start: Callable[[], Child]) -> Kept[Child]:
    """Return a process that answers requests."""
    return Kept(
        start, lambda child: child.stop(Deadline.after("stop", 2.0)), lambda child: child.alive
    )
