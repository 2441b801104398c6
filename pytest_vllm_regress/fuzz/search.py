"""Search for problems: draw schemas and instances, ask the backend, shrink each kind of problem to
the smallest schema."""

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
from ..schemas.deterministic import backend
from .finding import Finding, to_json_text
from .oracle import Outcome, Problem, Question
from .reduce import reduce
from .schema_judge import NotJudged

Ask = Callable[[Question], tuple[Problem, ...]]
NOT_JUDGED = "not judged"
"""Count of schemas that jsonschema could not judge within the limits."""
MAX_INSTANCES = 3
"""Maximum number of valid, and of invalid, instances per schema."""


@dataclasses.dataclass
class SearchResult:
    """Result of a search, filled while it runs.

    Attributes:
        checks: number of single checks asked for.
        counts: number of schemas by worst outcome, or ``NOT_JUDGED``.
        flaky: kinds of problems that did not occur again when they were shrunk.
        asking_seconds: time spent waiting for the backend.
    """

    schemas: int = 0
    checks: int = 0
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    findings: list[Finding] = dataclasses.field(default_factory=list)
    flaky: list[str] = dataclasses.field(default_factory=list)
    asking_seconds: float = 0.0


class _Found(Exception):
    """Reports a problem to Hypothesis.

    Each kind has its own subclass, because Hypothesis distinguishes failures by class.
    """

    def __init__(self, question: Question, problem: Problem) -> None:
        super().__init__(problem.words)
        self.finding = Finding(question, problem)


class _TimeIsUp(BaseException):
    """Ends the Hypothesis run at once: Hypothesis does not shrink a BaseException."""


@st.composite
def questions(draw: st.DrawFn, profile: Profile, budget: Budget) -> Question:
    """Draw a schema of the profile, with valid and invalid instances."""
    schema = draw(json_schemas(profile, budget))
    valid = draw(
        st.lists(valid_instances(schema, extras=profile.extras), min_size=1, max_size=MAX_INSTANCES)
    )
    misses = near_misses(schema, valid[0])
    invalid = draw(st.lists(st.sampled_from(misses), max_size=MAX_INSTANCES)) if misses else []
    valid_texts = tuple(dict.fromkeys(map(to_json_text, valid)))
    invalid_texts = tuple(dict.fromkeys(to_json_text(miss.value) for miss in invalid))
    return Question(schema, valid_texts, invalid_texts, seed=draw(st.integers(0, 999)))


@dataclasses.dataclass(frozen=True)
class SearchPlan:
    """What a search draws.

    Attributes:
        examples: number of questions in each round.
        seed: the same seed draws the same questions on every machine.
    """

    profile: Profile
    budget: Budget
    examples: int
    seed: int


class Search:
    """Draws questions in rounds. Each round shrinks what it finds; the next one ignores problems
    that this explains.

    Args:
        ask: asks the backend.
        database: examples that earlier searches found, tried first.
        known: findings that are not to be reported again.
        max_findings: the search ends after this many findings.
        until: time (``time.monotonic``) at which the search ends.
    """

    def __init__(
        self,
        ask: Ask,
        plan: SearchPlan,
        *,
        database: ExampleDatabase | None = None,
        known: tuple[Finding, ...] = (),
        max_findings: int = 40,
        until: float = float("inf"),
    ) -> None:
        self.result = SearchResult()
        self._ask_backend, self._plan, self._database = ask, plan, database
        self._known, self._max_findings, self._until = list(known), max_findings, until
        self._error_classes: dict[tuple[str, str], type[_Found]] = {}
        self._answers: dict[str, tuple[Problem, ...]] = {}

    def run(self) -> SearchResult:
        """Run rounds until one finds nothing new, there are enough findings, or time is up."""
        while len(self.result.findings) < self._max_findings and time.monotonic() < self._until:
            findings = [reduce(finding, self._ask) for finding in self._round()]
            if not findings:
                break
            self._known += findings
            self.result.findings += findings
        return self.result

    def _round(self) -> Iterator[Finding]:
        smallest: dict[type[_Found], Finding] = {}  # reported if time runs out

        @seed(self._plan.seed)
        @settings(
            backend=backend(),
            max_examples=self._plan.examples,
            database=self._database,
            deadline=None,
            print_blob=False,
            report_multiple_bugs=True,
            phases=[Phase.reuse, Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(questions(self._plan.profile, self._plan.budget))
        def check(question: Question) -> None:
            # Not checked while drawing, because Hypothesis expects repeated draws to be the same.
            if time.monotonic() > self._until:
                raise _TimeIsUp
            for problem in self._ask(question):
                if not any(known.explains(question, problem) for known in self._known):
                    error = self._error_class(problem)(question, problem)
                    previous = smallest.get(type(error), error.finding)
                    smallest[type(error)] = min(previous, error.finding, key=_size)
                    raise error

        try:
            check()
        except _TimeIsUp:
            yield from smallest.values()
        except _Found as error:
            yield error.finding
        except FlakyFailure as flaky:
            yield from self._flaky_findings(flaky)
        except BaseExceptionGroup as group:
            for member in group.exceptions:
                if isinstance(member, _Found):
                    yield member.finding
        except Unsatisfiable:
            return

    def _flaky_findings(self, flaky: FlakyFailure) -> Iterator[Finding]:
        """Record and yield the findings of a backend that answered differently the second time, as
        first seen."""
        for error in flaky.exceptions:
            if isinstance(error, _Found):
                self.result.flaky.append(
                    f"{error.finding.problem.outcome} ({error.finding.problem.key})"
                )
                yield error.finding

    def _ask(self, question: Question) -> tuple[Problem, ...]:
        key = json.dumps([question.schema, question.valid, question.invalid, question.seed])
        if key not in self._answers:
            if time.monotonic() > self._until:
                return ()
            began = time.monotonic()
            try:
                problems = self._ask_backend(question)
                outcome = str(problems[0].outcome if problems else Outcome.PASSING)
            except NotJudged:
                problems, outcome = (), NOT_JUDGED
            self._answers[key] = problems
            self.result.asking_seconds += time.monotonic() - began
            self.result.schemas += 1
            self.result.checks += question.checks
            self.result.counts[outcome] += 1
        return self._answers[key]

    def _error_class(self, problem: Problem) -> type[_Found]:
        key = (problem.outcome, problem.key)
        if key not in self._error_classes:
            self._error_classes[key] = type(f"Found{len(self._error_classes)}", (_Found,), {})
        return self._error_classes[key]


def _size(finding: Finding) -> int:
    return len(to_json_text(finding.question.schema))
