"""The hunter of ``vllm-regress fuzz engines``: requests to pairs of configurations that must agree.

A part is a pair.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from ...engines.session import Session
from ...errors import BuildError, ChildError, Unsupported
from ...util.codec import Meta, encode, replace
from ..drawing import drawn, drawn_data, identity
from ..finding import Finding, Line, Problem
from ..hunter import CampaignPlan, CannotRun, Hunter, Reply
from ..kept import held_requests
from ..reduce import Effort
from .engine_question import EVERYWHERE, Request, Turns
from .pairs import MODEL, Configuration, Pair, pairs_named
from .question_drawing import questions, smaller_questions
from .side_answer import (
    DEATH,
    NO_ANSWER,
    REFUSED,
    SideAnswer,
    difference,
    expected,
    foreign_cache,
    inconsistency,
)
from .sides import EngineSide

SECONDS = 30.0
"""Time for the requests of one turn, after which an engine counts as hung."""
_PROBED: Mapping[str, object] = drawn_data("engine_texts")["probed"]
_NOT_THERE = re.compile(
    r"not (?:yet |currently )?(?:supported|available|implemented)|keyword argument|does not support",
    re.I,
)
"""How vLLM says that a configuration lacks an option."""


class EngineFinding(Finding, frozen=True, tag="engines"):
    """Two configurations that do not agree. ``against``: the other environment of the pair
    ``release``."""

    pair: Annotated[str, Meta(pattern="^[a-z-]{1,40}$")]
    against: Line = ""
    question: Turns

    @property
    def subject(self) -> str:
        return f"engines-{self.pair}"

    @property
    def identity(self) -> object:
        return [self.pair, self.against, self.problem.kind, encode(self.question.turns)]

    @staticmethod
    def traits(question: Turns) -> frozenset[str]:
        return question.traits - EVERYWHERE


class PairChecker:
    """Sends questions to both sides of a pair in one environment. The engines of a pair stay up.

    ``seconds``: time limit for the requests of one turn.
    """

    def __init__(self, session: Session, environment: str, seconds: float = SECONDS) -> None:
        self._session, self._environment, self._seconds = session, environment, seconds
        self._sides: dict[tuple[str, bool], EngineSide] = {}
        self._lacking: dict[str, dict[str, str]] = {}

    def refusal(self, pair: Pair) -> str:
        """Start the engines of a pair. Returns why this vLLM does not have it; empty if it does."""
        try:
            for one in pair.sides:
                if one.front != MODEL:
                    self._side(pair, one).engine.get()
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
                if name not in pair.drops and (words := self._lacks(pair, name, value))
            }
        return self._lacking[pair.name]

    def ask(self, pair: Pair, question: Turns) -> list[Problem]:
        """Return every difference between the sides of the pair.

        An engine beside the model must also agree with itself, and none may keep requests that have
        ended.
        """
        requests = question.requests
        answers = zip(
            requests, *(self._ask(pair, one, question) for one in pair.sides), strict=True
        )
        seen = []
        for number, (request, left, right) in enumerate(answers):
            found = difference(left, right) or foreign_cache(requests, number, right)
            if found is None and pair.left.front == MODEL:
                found = inconsistency(request, right)
            seen += [replace(found, at=number)] if found else []
        for one in pair.sides:
            if one.front != MODEL:
                seen += held_requests(self._side(pair, one).engine.running)
        return seen

    def _ask(self, pair: Pair, one: Configuration, question: Turns) -> Sequence[SideAnswer | None]:
        """Return the answers of a side; None to requests of which the documentation says too
        little."""
        if one.front == MODEL:
            return [expected(request) for request in question.requests]
        return self._side(pair, one).ask(question)

    def _lacks(self, pair: Pair, name: str, value: object) -> str:
        options = {"max_tokens": 2, "temperature": 0.0, name: value}
        if name == "n":
            options.update(temperature=1.0, seed=0)
        question = Turns(((Request("Hi there", (), True, options),),))
        for one in (one for one in pair.sides if one.front != MODEL):
            (reply,) = self._side(pair, one).ask(question)
            if reply.error == REFUSED and _NOT_THERE.search(reply.words):
                return reply.words
        return ""

    def _side(self, pair: Pair, one: Configuration) -> EngineSide:
        key = pair.name, one is pair.left
        if key not in self._sides:
            self._sides[key] = EngineSide(
                self._session, self._environment, one, f"fuzz {pair.name}", self._seconds
            )
        return self._sides[key]


class PairHunter(Hunter[PairChecker, Pair, Turns, EngineFinding]):
    """Asks pairs. ``names``: those that are asked; empty for all. ``against``: another environment,
    for the pair of releases."""

    kind = EngineFinding
    lane = PairChecker
    most_of_kind = 3
    right = "both sides agree"

    def __init__(
        self,
        checkers: Sequence[PairChecker],
        environment: str,
        versions: Mapping[str, str],
        names: Sequence[str] = (),
        against: str = "",
    ) -> None:
        self._pairs, self._against = pairs_named(names, against), against
        options = {"pairs": [pair.name for pair in self._pairs], "against": against}
        super().__init__(checkers, environment, versions, options)

    def parts(self, plan: CampaignPlan, number: int) -> Iterator[Pair]:
        return (pair for pair in self._pairs if pair.name not in self.left_out)

    def label(self, part: Pair) -> str:
        return part.name

    def draw(self, part: Pair, plan: CampaignPlan, number: int) -> list[Turns]:
        if words := self.lanes.first.refusal(part):
            self.left_out[part.name] = words
            return []
        lacking = self.lanes.first.lacking(part)
        self.left_out |= {f"{part.name}, {name}": words for name, words in lacking.items()}
        fitted = (
            part.fitted(question, lacking)
            for question in drawn(questions(), plan.examples, plan.seed_of(number))
        )
        return list({identity(one): one for one in fitted if one}.values())

    def ask(self, lane: PairChecker, part: Pair, questions: Sequence[Turns]) -> list[Reply[Turns]]:
        return [Reply.of(question, lane.ask(part, question)) for question in questions]

    def simplify(self, part: Pair, question: Turns, problem: Problem) -> Iterator[Turns]:
        return smaller_questions(question, problem)

    def effort(self, problem: Problem) -> Effort:
        if DEATH in problem.kind or NO_ANSWER in problem.kind:  # each question costs an engine
            return Effort(16, confirmed=True)
        return Effort(120, confirmed=True, constant=True)

    def concerns(self, part: Pair, finding: EngineFinding) -> bool:
        return finding.pair == part.name

    def details(self, part: Pair, question: Turns, problem: Problem) -> dict[str, str]:
        against = self._against if part.name == "release" else ""
        return {"pair": part.name, "against": against}

    def describe(self, finding: EngineFinding) -> Iterator[str]:
        for number, turn in enumerate(finding.question.turns):
            where = f"turn {number + 1}: " if len(finding.question.turns) > 1 else ""
            yield from (where + json.dumps(encode(request)) for request in turn)

    def part_of(self, finding: EngineFinding) -> Pair:
        (pair,) = pairs_named((finding.pair,), finding.against)
        if words := self.lanes.first.refusal(pair):
            raise CannotRun(words)
        lacking = self.lanes.first.lacking(pair)
        if options := sorted(finding.question.traits & lacking.keys()):
            raise CannotRun(lacking[options[0]])
        return pair

    def subject(self, finding: EngineFinding) -> str:
        return f"pair {finding.pair} of {super().subject(finding)}"


HUNTER = PairHunter
