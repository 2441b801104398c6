"""Memory that grows with every request: the same request many times, and the slope of each
process's memory with its confidence interval."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ...surveys.states.growth import LEAST, Growth
from .oracle import Outcome, Problem
from .question import Question
from .reply import Reply

REQUESTS = 2000
"""Number of equal requests of a measurement, unless a campaign says another."""
_STATEFUL = ("lora", "adapters")
Measure = Callable[[Question], Mapping[str, Growth]]
"""Sends a question many times and returns the growth of each process."""


def candidates(questions: Sequence[Question], replies: Sequence[Reply]) -> Iterator[Question]:
    """Yield the accepted and the refused request of an operation with the shortest answers.

    Requests that change a state are left out.
    """
    for low, high in ((200, 300), (400, 500)):
        answered = [
            (len(reply.text), number)
            for number, reply in enumerate(replies)
            if reply.status is not None and low <= reply.status < high and not reply.failure
        ]
        if answered and not any(word in questions[0].route for word in _STATEFUL):
            yield questions[min(answered)[1]]


def growth_problem(question: Question, measure: Measure) -> Problem | None:
    """Return that memory grows with a request; None unless two measurements in a row show it.

    The first one may show a cache that fills.
    """
    first = _growing(measure(question))
    if not first:
        return None
    second = _growing(measure(question))
    for process in first:
        if process in second:
            words = f"{process}: {first[process].uss}, and again {second[process].uss}"
            return Problem(
                Outcome.MEMORY_GROWS,
                f"{process} grows at {question.method} {question.route}",
                words,
            )
    return None


def _growing(growths: Mapping[str, Growth]) -> dict[str, Growth]:
    return {name: growth for name, growth in growths.items() if growth.uss.low >= LEAST}
