"""A session outside pytest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from ..util.deadline import Deadline, Timeouts
from ..util.signals import terminate_as_interrupt
from .session import Session
from .settings import Settings


@contextlib.contextmanager
def bare_session(progress: Callable[[str], None] = lambda line: None) -> Iterator[Session]:
    """A session with default settings, closed at the end; ``progress`` gets a line for whatever takes long."""
    timeouts = Timeouts()
    session = Session(Settings(), lambda phase, seconds: Deadline.after(phase, seconds or timeouts.of(phase)), progress)
    with terminate_as_interrupt():
        try:
            yield session
        finally:
            session.close()
