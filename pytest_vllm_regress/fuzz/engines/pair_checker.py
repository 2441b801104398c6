"""Asks pairs of configurations. The engines of a pair stay up."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...engines.session import Session
from ...errors import BuildError, ChildError, Unsupported
from ...util import codec
from ..finding import Problem
from .differences import difference, foreign_cache, inconsistency
from .engine_question import Request, Turns
from .pairs import MODEL, Pair
from .side_answer import REFUSED
from .sides import EngineSide, Side, side

SECONDS = 30.0
"""Time for the requests of one turn, after which an engine counts as hung."""
_PROBED: Mapping[str, object] = {
    "truncate_prompt_tokens": 4,
    "bad_words": ["e"],
    "min_p": 0.1,
    "min_tokens": 1,
    "logit_bias": {"97": 1.0},
    "allowed_token_ids": [97, 98],
    "structured_outputs": {"regex": "ab"},
    "prompt_logprobs": 1,
    "logprobs": 1,
    "n": 2,
    "presence_penalty": 0.5,
    "detokenize": False,
}
_NOT_THERE = re.compile(
    r"not (?:yet |currently )?(?:supported|available|implemented)|keyword argument|does not support",
    re.I,
)
"""How vLLM says that a configuration lacks an option."""


class PairChecker:
    """Sends questions to both sides of a pair in one environment.

    ``seconds``: time limit for the requests of one turn.
    """

    def __init__(self, session: Session, environment: str, seconds: float = SECONDS) -> None:
        self._session, self._environment, self._seconds = session, environment, seconds
        self._sides: dict[str, tuple[Side, Side]] = {}
        self._lacking: dict[str, dict[str, str]] = {}

    def refusal(self, pair: Pair) -> str:
        """Start the engines of a pair. Returns why this vLLM does not have it; empty if it does."""
        try:
            for one in self._both(pair):
                if isinstance(one, EngineSide):
                    one.start()
        except (Unsupported, ChildError, BuildError) as error:
            return str(error.args[0]).partition("\n")[0][:300]
        return ""

    def lacking(self, pair: Pair) -> dict[str, str]:
        """Return the options that a side of the pair refuses because it does not have them, with
        its words. They are not asked."""
        if pair.name not in self._lacking:
            self._lacking[pair.name] = {
                name: words
                for name, value in _PROBED.items()
                if (words := self._lacks(pair, name, value))
            }
        return self._lacking[pair.name]

    def ask(self, pair: Pair, question: Turns) -> list[Problem]:
        """Return every difference between the sides of the pair.

        An engine beside the model must also agree with itself.
        """
        answers = zip(
            question.requests, *(one.ask(question) for one in self._both(pair)), strict=True
        )
        seen = []
        for number, (request, left, right) in enumerate(answers):
            found = difference(left, right) or foreign_cache(question.requests, number, right)
            if found is None and pair.left.front == MODEL:
                found = inconsistency(request, right)
            seen += [codec.replace(found, at=number)] if found else []
        return seen

    def _lacks(self, pair: Pair, name: str, value: object) -> str:
        if name in pair.drops:
            return ""
        options = {"max_tokens": 2, "temperature": 0.0, name: value}
        if name == "n":
            options.update(temperature=1.0, seed=0)
        question = Turns(((Request("Hi there", (), True, options),),))
        for configuration, one in zip(pair.sides, self._both(pair), strict=True):
            reply = None if configuration.front == MODEL else one.ask(question)[0]
            if reply is not None and reply.error == REFUSED and _NOT_THERE.search(reply.words):
                return reply.words
        return ""

    def _both(self, pair: Pair) -> tuple[Side, Side]:
        if pair.name not in self._sides:
            left, right = (
                side(self._session, self._environment, one, f"fuzz {pair.name}", self._seconds)
                for one in pair.sides
            )
            self._sides[pair.name] = left, right
        return self._sides[pair.name]
