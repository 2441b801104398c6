"""Several checkers, each with servers of its own: the next stories happen while one is judged or
shrunk."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

from .checker import StoryChecker
from .history import Problem
from .story import Story


class Lanes:
    """Checkers that run stories at the same time. ``first`` tells the release."""

    def __init__(self, checkers: Sequence[StoryChecker]) -> None:
        self.first = checkers[0]
        self._size = len(checkers)
        self._free: queue.SimpleQueue[StoryChecker] = queue.SimpleQueue()
        for checker in checkers:
            self._free.put(checker)
        self._pool = ThreadPoolExecutor(self._size)
        self._begun: dict[Story, Future[list[Problem]]] = {}

    def run(self, story: Story) -> list[Problem]:
        """Let a story happen as soon as a checker is free.

        Returns what is wrong with its history.
        """
        checker = self._free.get()
        try:
            return checker.run(story)
        finally:
            self._free.put(checker)

    def run_ahead(self, stories: Iterable[Story]) -> list[Problem]:
        """Return what is wrong with the history of the first story.

        The others begin too, as far as there are checkers.
        """
        first, *others = islice(stories, self._size)
        for story in (first, *others):
            if story not in self._begun:
                self._begun[story] = self._pool.submit(self.run, story)
        return self._begun.pop(first).result()

    def close(self, *, wait: bool = True) -> None:
        """Start no new stories. With ``wait``, let the running ones finish first.

        Then stop the servers.
        """
        self._pool.shutdown(wait=wait, cancel_futures=True)
        if wait:
            while not self._free.empty():
                self._free.get().close()
