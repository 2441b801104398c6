"""Lanes: copies of what is asked, each with engines or servers of its own, which share the questions."""

from __future__ import annotations

import functools
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

L = TypeVar("L")
T = TypeVar("T")


class Lanes(Generic[L]):
    """Lanes that work at the same time; each does one thing after the other.

    ``first`` also tells what all have alike.
    """

    def __init__(self, lanes: Sequence[L]) -> None:
        self.first, self.size = lanes[0], len(lanes)
        self._all = lanes
        self._free: queue.SimpleQueue[L] = queue.SimpleQueue()
        for lane in lanes:
            self._free.put(lane)
        self._pool = ThreadPoolExecutor(self.size) if self.size > 1 else None

    def run(self, work: Callable[[L], T]) -> T:
        """Do the work as soon as a lane is free."""
        lane = self._free.get()
        try:
            return work(lane)
        finally:
            self._free.put(lane)

    def begin(self, work: Callable[[L], T]) -> Callable[[], T]:
        """Do the work in the background. The function that is returned waits for its result.

        A single lane does it when it is waited for: in the main thread, which Ctrl-C interrupts.
        """
        if self._pool is None:
            return functools.partial(self.run, work)
        return self._pool.submit(self.run, work).result

    def __enter__(self) -> Lanes[L]:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        """Begin nothing more, and let every lane stop what it started. After an error the end of
        their sessions does that, in the middle of the work."""
        if self._pool is not None:
            self._pool.shutdown(wait=error is None, cancel_futures=True)
        for lane in self._all if error is None else ():
            getattr(lane, "close", lambda: None)()
