"""One problem and the question that shows it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from ..schemas import Feature, features
from .oracle import Outcome, Problem, Question

_EVERYWHERE = frozenset(
    {
        *(f.value for f in (Feature.NULL, Feature.BOOLEAN, Feature.INTEGER, Feature.NUMBER, Feature.STRING)),
        *(f.value for f in (Feature.ARRAY, Feature.OBJECT, Feature.NESTING)),
    }
)


@dataclasses.dataclass(frozen=True)
class Finding:
    """A question shrunk to the smallest one with this problem."""

    question: Question
    problem: Problem

    def explains(self, question: Question, problem: Problem) -> bool:
        """Whether the problem looks like this one again: the same kind, in a schema that uses all that this one uses."""
        same = (problem.outcome, problem.key) == (self.problem.outcome, self.problem.key)
        return same and essential(features(self.question.schema)) <= features(question.schema)


def essential(used: frozenset[str]) -> frozenset[str]:
    """Features without those that every schema has some of: types and nesting. Where there are no others, all."""
    return used - _EVERYWHERE or used


def spelt(value: Any) -> str:
    """A value as JSON text, as a model writes it: a space after commas and colons, characters as they are."""
    return json.dumps(value, ensure_ascii=False)


def questions_of(finding: Finding) -> Question:
    """The question with the problem's text alone. One that a walk wrote is asked about by itself too: walks may go elsewhere in other versions."""
    question, problem = finding.question, finding.problem
    if problem.text is None or problem.text in question.valid:
        valid = tuple(text for text in question.valid if text == problem.text)
        return dataclasses.replace(question, valid=valid or question.valid[:1], invalid=())
    if problem.outcome is Outcome.ACCEPTED_INVALID:
        walks = 0 if problem.text in question.invalid else question.walks
        return dataclasses.replace(question, valid=question.valid[:1], invalid=(problem.text,), walks=walks)
    return question
