"""The hunter of ``vllm-regress fuzz schemas``: JSON schemas with valid and invalid texts for the
backends of structured output, each alone and, if asked, in a whole engine.

A part is ten questions to one backend, so that a budget of minutes is kept where a question may
take ten seconds.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from hypothesis import strategies as st

from ...engines.session import Session
from ...engines.spec import front_named
from ...errors import Unsupported, UsageError
from ...schemas import (
    Budget,
    Profile,
    features,
    json_schemas,
    near_misses,
    valid_instances,
)
from ...schemas.profile import TABLES, as_profile
from ...util.codec import Document, Meta, encode, replace
from ..drawing import drawn
from ..finding import Finding, Line, Problem, ReplayAnswer
from ..hunter import CampaignPlan, Hunter, Reply
from ..reduce import Effort
from .backends import BACKENDS, Allowance, BackendChecker
from .constrained import FRONTS, ConstrainedEngine
from .corpus import BUILT_IN, read, shipped_findings
from .schema_cuts import smaller_questions, to_json_text
from .schema_judge import NotJudged
from .schema_oracle import Outcome, SchemaQuestion

GRAMMAR = "grammar"
SLOWDOWN = 6
"""How much slower a machine may be than the one that made the finding."""
NOT_JUDGED = "not judged"
"""Count of schemas that jsonschema could not judge within the limits."""
MAX_INSTANCES = 3
"""Maximum number of valid, and of invalid, instances per schema."""
_CHUNK = 10
_ENGINE_EXAMPLES = 40
"""Maximum number of questions of a round to a whole engine, which takes seconds for each."""
_USUAL_FEATURES = frozenset(TABLES["usual-features"])
_FAILING = (Outcome.COMPILE_ERROR, Outcome.CRASH, Outcome.OUT_OF_MEMORY, Outcome.TIME_OUT)
"""Outcomes with which a backend does not come to the check of a text."""


class SchemaFinding(Finding, frozen=True, tag="schemas"):
    """A finding about one backend.

    Attributes:
        others: answers of other backends to the same question.
        front: what was tested: the grammar alone, an offline engine, or a server (``serve``).
    """

    allowed = tuple(Outcome)[1:]
    backend: Literal["lm-format-enforcer", "xgrammar", "llguidance", "outlines"]
    front: Literal["grammar", "offline", "serve"] = "grammar"
    profile: Annotated[str, Meta(max_length=100)] = "full"
    allowance: Allowance = Allowance()
    others: Annotated[Mapping[str, Line], Meta(max_length=20)] = {}
    question: SchemaQuestion

    @property
    def subject(self) -> str:
        return self.backend if self.front == GRAMMAR else f"{self.front}-{self.backend}"

    @property
    def identity(self) -> object:
        return json.dumps([self.question.schema, self.problem.key], sort_keys=True)

    @staticmethod
    def traits(question: SchemaQuestion) -> frozenset[str]:
        return features(question.schema)

    def explains(self, question: SchemaQuestion, problem: Problem) -> bool:
        """As for all findings, but types and nesting do not count, which nearly every schema has,
        unless the finding has nothing else."""
        used = self.traits(self.question)
        same = self.problem.group == problem.group
        return same and (used - _USUAL_FEATURES or used) <= self.traits(question)

    @property
    def replay_allowance(self) -> Allowance:
        """Time and memory for a replay.

        More time, for slower machines, unless the finding is a time-out.
        """
        factor = 1 if self.problem.kind == Outcome.TIME_OUT else SLOWDOWN
        return replace(self.allowance, seconds=factor * self.allowance.seconds)


class BackendPart(Document, frozen=True):
    """A backend in an environment, alone or in an engine. ``chunk``: which ten questions."""

    environment: str
    backend: str
    allowance: Allowance
    front: str = GRAMMAR
    chunk: int = 0


Asker = BackendChecker | ConstrainedEngine
"""Returns the problems with the answers to a question."""


class Backends:
    """The backends of a session. Each is started once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._askers: dict[BackendPart, Asker] = {}

    def checker(self, part: BackendPart) -> BackendChecker:
        """Return the checker of a backend alone. Raises ``Unsupported``."""
        checker = self.asker(replace(part, front=GRAMMAR))
        assert isinstance(checker, BackendChecker)
        return checker

    def has(self, part: BackendPart) -> bool:
        """Return whether the environment has a usable version of the backend."""
        with contextlib.suppress(Unsupported):
            self.checker(part)
            return True
        return False

    def asker(self, part: BackendPart) -> Asker:
        """Return what is asked. Raises ``Unsupported``."""
        key = replace(part, chunk=0)
        if key not in self._askers:
            self._askers[key] = self._started(part)
        return self._askers[key]

    def _started(self, part: BackendPart) -> Asker:
        if part.front == GRAMMAR:
            return BackendChecker(self._session, part.environment, part.backend, part.allowance)
        target = self._session.target(part.environment)
        return ConstrainedEngine(self._session, target, part.backend, front_named(part.front))

    def close(self) -> None:
        """Stop the processes of the backends."""
        for asker in self._askers.values():
            asker.close()


class SchemaHunter(Hunter[Backends, BackendPart, SchemaQuestion, SchemaFinding]):
    """Asks backends.

    Args:
        tested: backends in environments; the failing questions of one are also put to the others.
        profile: features that schemas may use; None for those each backend claims to support.
        nodes: maximum size of a schema in subschemas.
        fronts: whole engines that are asked too.
        corpus: folders with fixed questions.
    """

    kind = SchemaFinding
    right = "the backend answers correctly"

    def __init__(
        self,
        backends: Backends,
        environment: str,
        tested: Sequence[BackendPart] = (),
        *,
        profile: Profile | None = None,
        nodes: int = 12,
        fronts: Sequence[str] = (),
        corpus: Sequence[Path] = (),
    ) -> None:
        if unknown := [front for front in fronts if front not in FRONTS]:
            raise UsageError(f"--engine {unknown[0]!r}: allowed are {' and '.join(FRONTS)}")
        self.backends, self.tested, self.fronts = backends, tested, fronts
        self._profile, self._nodes, self._corpus = profile, nodes, corpus
        options = {
            "tested": encode(tested),
            "profile": profile.name if profile else None,
            "nodes": nodes,
            "fronts": list(fronts),
        }
        super().__init__([backends], environment, {}, options)

    @classmethod
    def of(cls, sessions: Sequence[Session], environment: str, **_: Any) -> Self:
        return cls(Backends(sessions[0]), environment)

    @classmethod
    def installed(
        cls,
        session: Session,
        environments: Sequence[str],
        names: Sequence[str],
        allowance: Allowance,
        **options: Any,
    ) -> Self:
        """Return the hunter of these backends, as far as the environments have them.

        Raises ``UsageError`` for an environment that has none.
        """
        if unknown := sorted({*names} - {*BACKENDS}):
            raise UsageError(f"--backend {unknown[0]!r}: allowed are {', '.join(BACKENDS)}")
        if not environments:
            raise UsageError(
                "name an environment with --env, for example --env lm-format-enforcer-0.11.3"
            )
        backends, tested = Backends(session), []
        for environment in environments:
            candidates = [BackendPart(environment, name, allowance) for name in names or BACKENDS]
            installed = list(filter(backends.has, candidates))
            if not installed:
                raise UsageError(
                    f"{environment} has no usable installation of {', '.join(names or BACKENDS)}"
                )
            tested += installed
        return cls(backends, ", ".join(environments), tested, **options)

    @property
    def title(self) -> str:
        return ", ".join(f"{self._versioned(part)} in {part.environment}" for part in self.tested)

    def parts(self, plan: CampaignPlan, number: int) -> Iterator[BackendPart]:
        for front in (GRAMMAR, *self.fronts):
            count = plan.examples if front == GRAMMAR else min(plan.examples, _ENGINE_EXAMPLES)
            for part in self.tested:
                for chunk in range(-(-count // _CHUNK)):
                    yield replace(part, front=front, chunk=chunk)

    def label(self, part: BackendPart) -> str:
        front = "" if part.front == GRAMMAR else f" ({part.front})"
        first = part.chunk * _CHUNK + 1
        return f"{part.backend} in {part.environment}{front}, from question {first}"

    def draw(self, part: BackendPart, plan: CampaignPlan, number: int) -> list[SchemaQuestion]:
        strategy = schema_questions(self.profile(part.backend), Budget(nodes=self._nodes))
        questions = drawn(strategy, plan.examples, plan.seed_of(number))
        return questions[part.chunk * _CHUNK :][: min(_CHUNK, plan.examples)]

    def profile(self, backend: str) -> Profile:
        """Return the profile of the schemas for a backend."""
        return self._profile or as_profile(backend)

    def ask(
        self, lane: Backends, part: BackendPart, questions: Sequence[SchemaQuestion]
    ) -> list[Reply[SchemaQuestion]]:
        return [_answer(lane.asker(part), question) for question in questions]

    def simplify(
        self, part: BackendPart, question: SchemaQuestion, problem: Problem
    ) -> Iterator[SchemaQuestion]:
        return smaller_questions(question, problem)

    def effort(self, problem: Problem) -> Effort:
        return Effort(24 if problem.kind == Outcome.TIME_OUT else 300)

    def concerns(self, part: BackendPart, finding: SchemaFinding) -> bool:
        return (finding.environment, finding.backend) == (part.environment, part.backend)

    def details(
        self, part: BackendPart, question: SchemaQuestion, problem: Problem
    ) -> dict[str, object]:
        checker = self.backends.checker(part)
        self.versions = checker.versions
        return {
            "versions": self.known_versions("interegular", checker.package),
            "backend": part.backend,
            "front": part.front,
            "profile": self.profile(part.backend).name,
            "allowance": part.allowance,
            "others": self._others(part, question),
        }

    def _others(self, part: BackendPart, question: SchemaQuestion) -> dict[str, str]:
        """Return the answers of the other backends that claim to support the schema, to show where
        backends disagree."""
        used = features(question.schema)
        return {
            self._versioned(peer): _in_words(_answer(self.backends.checker(peer), question))
            for peer in self.tested
            if peer != replace(part, front=GRAMMAR, chunk=0)
            and used <= as_profile(peer.backend).features
        }

    def describe(self, finding: SchemaFinding) -> Iterator[str]:
        yield format_schema(finding.question.schema)
        for name, words in finding.others.items():
            yield f"{name}: {words}"

    def part_of(self, finding: SchemaFinding) -> BackendPart:
        return BackendPart(
            self.environment, finding.backend, finding.replay_allowance, finding.front
        )

    def subject(self, finding: SchemaFinding) -> str:
        return self._versioned(self.part_of(finding))

    def _versioned(self, part: BackendPart) -> str:
        return f"{part.backend} {self.backends.checker(part).version}"

    def compare(self, finding: SchemaFinding, seen: Sequence[Problem]) -> tuple[ReplayAnswer, str]:
        """FIXED requires that the backend came to the check that failed."""
        recorded = finding.problem
        if not seen or any(problem.group == recorded.group for problem in seen):
            return super().compare(finding, seen)
        worst = seen[0]
        if recorded.kind == Outcome.ACCEPTED_INVALID and worst.kind == Outcome.COMPILE_ERROR:
            return ReplayAnswer.FIXED, f"the backend now rejects the schema: {worst.words}"
        if worst.kind in _FAILING:
            return ReplayAnswer.CANNOT_RUN, f"another failure prevents the check: {worst.words}"
        if similar := [problem for problem in seen if problem.kind == recorded.kind]:
            return ReplayAnswer.STILL_FAILS, f"with different details: {similar[0].words}"
        words = f"the recorded problem is gone; another one remains: {worst.words}"
        return ReplayAnswer.FIXED, words

    def ask_corpus(self, write_line: Callable[[str], None]) -> dict[str, dict[str, str]]:
        """Ask the built-in questions, those below the folders of the corpus and the shipped
        findings, as far as the profiles cover them."""
        groups = [
            *(group for folder in (BUILT_IN, *self._corpus) for group in read(folder)),
            *shipped_findings(),
        ]
        failures: dict[str, dict[str, str]] = {}
        for part in self.tested:
            claimed = [group for group in groups if group.claimed_by(self.profile(part.backend))]
            failing, skipped = {}, {}
            for group in claimed:
                reply = _answer(self.backends.checker(part), group.question)
                if reply.unjudged:
                    skipped[group.name] = f"skipped: {reply.unjudged}"
                elif reply.problems:
                    worst = reply.problems[0][1]
                    failing[group.name] = f"{worst}: {worst.words}"
            judged = len(claimed) - len(skipped)
            write_line(
                f"  corpus, {part.backend} in {part.environment}: {judged - len(failing)} of "
                f"{judged} pass, {len(groups) - len(claimed)} skipped because the profile does not "
                "cover them"
            )
            for name, words in {**failing, **skipped}.items():
                write_line(f"    {name}: {words}")
            failures[f"{part.backend} in {part.environment}"] = failing
        return failures


@functools.cache
@st.composite
def schema_questions(draw: st.DrawFn, profile: Profile, budget: Budget) -> SchemaQuestion:
    """Draw a schema of the profile, with valid and invalid instances."""
    schema = draw(json_schemas(profile, budget))
    valid = draw(
        st.lists(valid_instances(schema, extras=profile.extras), min_size=1, max_size=MAX_INSTANCES)
    )
    misses = near_misses(schema, valid[0])
    invalid = draw(st.lists(st.sampled_from(misses), max_size=MAX_INSTANCES)) if misses else []
    valid_texts = tuple(dict.fromkeys(map(to_json_text, valid)))
    invalid_texts = tuple(dict.fromkeys(to_json_text(miss.value) for miss in invalid))
    return SchemaQuestion(schema, valid_texts, invalid_texts, seed=draw(st.integers(0, 999)))


def _answer(asker: Asker, question: SchemaQuestion) -> Reply[SchemaQuestion]:
    """Return a reply that is counted by its worst problem."""
    try:
        problems = asker.ask(question)
    except NotJudged as error:
        return Reply((), [NOT_JUDGED], str(error))
    outcome = problems[0].kind if problems else Outcome.PASSING
    return Reply([(question, problem) for problem in problems], [outcome])


def _in_words(reply: Reply[SchemaQuestion]) -> str:
    words = reply.unjudged or (reply.problems[0][1].words if reply.problems else "passing")
    return words[:300]


def format_schema(schema: Mapping[str, Any]) -> str:
    """Format a schema for people: short ones on one line, longer ones indented."""
    plain = to_json_text(schema)
    return plain if len(plain) <= 100 else json.dumps(schema, indent=1, ensure_ascii=False)


HUNTER = SchemaHunter
