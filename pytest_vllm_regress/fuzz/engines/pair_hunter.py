"""The hunter of ``vllm-regress fuzz engines``: requests to pairs of configurations that must agree.

A part is a pair.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from ...engines.session import Session
from ...util import codec
from ...util.codec import Meta
from ..finding import Finding, Line, Problem, hyphenated
from ..hunter import CampaignPlan, CannotRun, Hunter, versions_with_vllm
from ..reduce import Effort
from .engine_question import EVERYWHERE, Turns
from .pair_checker import SECONDS, PairChecker
from .pairs import Pair, pairs_named
from .question_cuts import smaller_questions
from .question_drawing import drawn
from .side_answer import DEATH, NO_ANSWER


class EngineFinding(Finding, frozen=True, tag="engines"):
    """Two configurations that do not agree. ``against``: the other environment of the pair
    ``release``."""

    pair: Annotated[str, Meta(pattern="^[a-z-]{1,40}$")]
    against: Line = ""
    question: Turns

    @property
    def title(self) -> str:
        return f"engines-{self.pair}-{hyphenated(self.problem.kind)}"

    @property
    def identity(self) -> object:
        return [self.pair, self.against, self.problem.kind, codec.encode(self.question.turns)]

    @staticmethod
    def traits(question: Turns) -> frozenset[str]:
        return question.traits - EVERYWHERE


class PairHunter(Hunter[PairChecker, Pair, Turns, Sequence[Problem], EngineFinding]):
    """Asks pairs. ``names``: those that are asked; empty for all. ``against``: another environment,
    for the pair of releases."""

    kind = EngineFinding
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

    @classmethod
    def of(
        cls,
        sessions: Sequence[Session],
        environment: str,
        *,
        names: Sequence[str] = (),
        against: str = "",
        seconds: float = SECONDS,
    ) -> PairHunter:
        versions = versions_with_vllm(sessions[0], environment)
        checkers = [PairChecker(session, environment, seconds) for session in sessions]
        return cls(checkers, environment, versions, names, against)

    def parts(self, plan: CampaignPlan, number: int) -> Iterator[Pair]:
        return (pair for pair in self._pairs if pair.name not in self.left_out)

    def label(self, part: Pair) -> str:
        return part.name

    def draw(self, part: Pair, plan: CampaignPlan, number: int) -> list[Turns]:
        if words := self.lanes.first.refusal(part):
            self.left_out[part.name] = words
            return []
        lacking = self.lanes.first.lacking(part)
        questions = (
            part.fitted(question, lacking)
            for question in drawn(plan.examples, plan.seed * 1000 + number)
        )
        return list({one.to_text(): one for one in questions if one}.values())

    def notes(self, part: Pair) -> tuple[str, ...]:
        lacking = {} if part.name in self.left_out else self.lanes.first.lacking(part)
        return tuple(f"not asked: {name}: {words}" for name, words in lacking.items())

    def ask(
        self, lane: PairChecker, part: Pair, questions: Sequence[Turns]
    ) -> list[Sequence[Problem]]:
        return [lane.ask(part, question) for question in questions]

    def simplify(self, part: Pair, question: Turns, problem: Problem) -> Iterator[Turns]:
        return smaller_questions(question, problem)

    def effort(self, problem: Problem) -> Effort:
        if DEATH in problem.kind or NO_ANSWER in problem.kind:  # each question costs an engine
            return Effort(16, confirmed=True)
        return Effort(120, confirmed=True, constant=True)

    def concerns(self, part: Pair, finding: EngineFinding) -> bool:
        return finding.pair == part.name

    def finding(self, part: Pair, question: Turns, problem: Problem) -> EngineFinding:
        return EngineFinding(
            environment=self.environment,
            versions=self.known_versions(),
            question=question,
            problem=problem,
            pair=part.name,
            against=self._against if part.name == "release" else "",
        )

    def describe(self, finding: EngineFinding) -> Iterator[str]:
        for number, turn in enumerate(finding.question.turns):
            where = f"turn {number + 1}: " if len(finding.question.turns) > 1 else ""
            yield from (where + json.dumps(codec.encode(request)) for request in turn)

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
