"""The search: schemas and instances are drawn, asked about, and each kind of problem is shrunk to the smallest schema that has it."""

from __future__ import annotations

import dataclasses
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.database import ExampleDatabase
from hypothesis.errors import FlakyFailure, Unsatisfiable

from ..schemas import Budget, Profile, json_schemas, near_misses, valid_instances
from ..schemas.seeded import backend
from .finding import Finding, spelt
from .oracle import Outcome, Problem, Question
from .reduce import reduce

Ask = Callable[[Question], tuple[Problem, ...]]
FEW = 3
"""At most this many valid and this many invalid instances per schema."""


@dataclasses.dataclass
class Survey:
    """What a search has seen. ``counts``: schemas by their worst outcome; ``unshrunk``: kinds whose shrinking did not repeat."""

    schemas: int = 0
    checks: int = 0
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    findings: list[Finding] = dataclasses.field(default_factory=list)
    unshrunk: list[str] = dataclasses.field(default_factory=list)
    asking_seconds: float = 0.0


class _Found(Exception):
    """Raised for Hypothesis; each kind of problem has a subclass, because Hypothesis tells failures apart by class."""

    def __init__(self, question: Question, problem: Problem) -> None:
        super().__init__(problem.words)
        self.finding = Finding(question, problem)


class _TimeIsUp(BaseException):
    """Ends Hypothesis at once: it looks for no smaller example of this."""


@st.composite
def questions(draw: st.DrawFn, profile: Profile, budget: Budget) -> Question:
    """A schema of a profile, with instances."""
    schema = draw(json_schemas(profile, budget))
    valid = draw(st.lists(valid_instances(schema, extras=profile.extras), min_size=1, max_size=FEW))
    misses = near_misses(schema, valid[0])
    invalid = draw(st.lists(st.sampled_from(misses), max_size=FEW)) if misses else []
    good, bad = (tuple(dict.fromkeys(map(spelt, values))) for values in (valid, [miss.value for miss in invalid]))
    return Question(schema, good, bad, seed=draw(st.integers(0, 999)))


class Search:
    """Draws ``examples`` questions in rounds: each round shrinks what it finds, the next one looks for what that does not explain.

    With ``seed_value`` the same questions are drawn everywhere; ``database`` brings back what earlier searches found. ``known`` are
    findings not to look for again.
    """

    def __init__(
        self,
        ask: Ask,
        profile: Profile,
        budget: Budget,
        *,
        examples: int,
        seed_value: int,
        database: ExampleDatabase | None = None,
        known: tuple[Finding, ...] = (),
        most: int = 40,
        until: float = float("inf"),
    ) -> None:
        self.survey = Survey()
        self._ask_backend, self._profile, self._budget = ask, profile, budget
        self._examples, self._seed, self._database = examples, seed_value, database
        self._known, self._most, self._until = list(known), most, until
        self._kinds: dict[tuple[str, str], type[_Found]] = {}
        self._answers: dict[str, tuple[Problem, ...]] = {}

    def run(self) -> Survey:
        """Round by round, until a round finds nothing new, enough was found, or time is up."""
        while len(self.survey.findings) < self._most and time.monotonic() < self._until:
            found = [reduce(finding, self._asked) for finding in self._round()]
            if not found:
                break
            self._known += found
            self.survey.findings += found
        return self.survey

    def _round(self) -> Iterator[Finding]:
        smallest: dict[type[_Found], Finding] = {}  # what there is when time is up

        @seed(self._seed)
        @settings(
            backend=backend(),
            max_examples=self._examples,
            database=self._database,
            deadline=None,
            print_blob=False,
            report_multiple_bugs=True,
            phases=[Phase.reuse, Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(questions(self._profile, self._budget))
        def one(question: Question) -> None:
            if (
                time.monotonic() > self._until
            ):  # asked here and not while drawing: what is drawn twice must be the same twice
                raise _TimeIsUp
            for problem in self._asked(question):
                if not any(known.explains(question, problem) for known in self._known):
                    found = self._kind(problem)(question, problem)
                    known_one = smallest.get(type(found), found.finding)
                    smallest[type(found)] = min(known_one, found.finding, key=_size)
                    raise found

        try:
            one()
        except _TimeIsUp:
            yield from smallest.values()
        except _Found as found:
            yield found.finding
        except FlakyFailure as flaky:
            yield from self._unrepeated(flaky)
        except BaseExceptionGroup as group:
            for each in group.exceptions:
                if isinstance(each, _Found):
                    yield each.finding
        except Unsatisfiable:
            return

    def _unrepeated(self, flaky: FlakyFailure) -> Iterator[Finding]:
        """A backend that answers differently the second time: kept as it was seen, and said so."""
        for each in flaky.exceptions:
            if isinstance(each, _Found):
                self.survey.unshrunk.append(f"{each.finding.problem.outcome} ({each.finding.problem.key})")
                yield each.finding

    def _asked(self, question: Question) -> tuple[Problem, ...]:
        key = json.dumps([question.schema, question.valid, question.invalid, question.seed])
        if key not in self._answers:
            if time.monotonic() > self._until:
                return ()
            began = time.monotonic()
            found = self._answers[key] = self._ask_backend(question)
            self.survey.asking_seconds += time.monotonic() - began
            self.survey.schemas += 1
            self.survey.checks += question.checks
            self.survey.counts[found[0].outcome if found else Outcome.PASSING] += 1
        return self._answers[key]

    def _kind(self, problem: Problem) -> type[_Found]:
        key = (problem.outcome, problem.key)
        if key not in self._kinds:
            self._kinds[key] = type(f"Found{len(self._kinds)}", (_Found,), {})
        return self._kinds[key]


def _size(finding: Finding) -> int:
    return len(spelt(finding.question.schema))
