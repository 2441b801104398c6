"""Several copies of a pair's engines, which share the drawn questions."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from .checker import PairChecker
from .observed import Observed
from .pairs import Pair
from .request import Question


class Lanes:
    """Checkers with sessions of their own. ``first`` also shrinks and replays."""

    def __init__(self, checkers: Sequence[PairChecker]) -> None:
        self.first = checkers[0]
        self._checkers = checkers

    def ask_all(self, pair: Pair, questions: Sequence[Question]) -> list[list[Observed]]:
        """Return the differences of each question, in the order of the questions.

        Each lane asks a part of them.
        """
        size = max(1, -(-len(questions) // len(self._checkers)))
        parts = [questions[start : start + size] for start in range(0, len(questions), size)]
        if len(parts) < 2:
            return [self.first.ask(pair, question) for question in questions]

        def ask(checker: PairChecker, part: Sequence[Question]) -> list[list[Observed]]:
            return [checker.ask(pair, question) for question in part]

        with ThreadPoolExecutor(len(parts)) as pool:
            return [seen for part in pool.map(ask, self._checkers, parts) for seen in part]
