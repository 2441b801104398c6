"""Stand-ins for the two sides of a pair: right ones, and faults that are planted in one of them."""

from __future__ import annotations

from collections.abc import Callable

from pytest_vllm_regress.fuzz.engines.engine_question import Request, Turns
from pytest_vllm_regress.fuzz.engines.pairs import Pair
from pytest_vllm_regress.fuzz.engines.side_answer import Choice, SideAnswer, difference
from pytest_vllm_regress.fuzz.finding import Problem
from pytest_vllm_regress.util import codec

Fault = Callable[[Request, SideAnswer], SideAnswer]


def right(request: Request) -> SideAnswer:
    """Return an answer that depends on nothing but the request."""
    text = (request.said or (request.prompt,))[0][: request.options.get("max_tokens", 16)]
    choice = Choice(text, "length", None, tuple(text.encode("utf-8", "surrogateescape")))
    return SideAnswer((choice,) * request.options.get("n", 1))


def loses_results(request: Request, answer: SideAnswer) -> SideAnswer:
    """Return one of several results."""
    return SideAnswer(answer.choices[:1])


def forgets_stop_with_seed(request: Request, answer: SideAnswer) -> SideAnswer:
    if "stop" not in request.options or "seed" not in request.options:
        return answer
    return SideAnswer(
        tuple(Choice("other", "stop", "x", choice.token_ids) for choice in answer.choices)
    )


class StandIn:
    """Stands in for ``PairChecker``.

    ``dies_after``: number of questions after which it is killed.
    """

    def __init__(
        self, fault: Fault = lambda request, answer: answer, dies_after: int = 10**9
    ) -> None:
        self.questions = 0
        self._fault, self._dies_after = fault, dies_after

    def refusal(self, pair: Pair) -> str:
        return "there is no TPU" if pair.name == "tensor-parallel" else ""

    def lacking(self, pair: Pair) -> dict[str, str]:
        return {"truncate_prompt_tokens": "Unexpected keyword argument"}

    def ask(self, pair: Pair, question: Turns) -> list[Problem]:
        self.questions += 1
        if self.questions > self._dies_after:
            raise KeyboardInterrupt
        return [
            codec.replace(found, at=number)
            for number, request in enumerate(question.requests)
            if (found := difference(right(request), self._fault(request, right(request))))
        ]
