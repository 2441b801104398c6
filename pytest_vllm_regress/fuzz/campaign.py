"""A backend's turn: drawn questions, standing ones, whole engines; what is wrong is shrunk and written."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase

from ..engines.session import Session
from ..engines.spec import front_named
from ..errors import UsageError
from ..schemas import Budget, Profile, features
from ..schemas.profile import as_profile
from ..util.paths import writable_root
from .artefact import Artefact, as_text, of_finding
from .checker import BACKENDS, Allowance, Checker
from .corpus import BUILT_IN, minima, read
from .finding import Finding, questions_of
from .on_engine import EngineChecker
from .search import Search, Survey


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is the same for all backends.

    ``profile``: what schemas may use (None: what each backend claims to support); ``examples`` questions in each round; ``nodes``: size
    of a schema in subschemas; ``seed`` None draws another one each time; ``minutes`` end a backend's search (None: no limit); ``out``:
    the folder of the findings.
    """

    profile: Profile | None = None
    examples: int = 200
    nodes: int = 12
    seed: int | None = None
    minutes: float | None = None
    out: Path = Path("findings")


class Campaign:
    """One backend's turn. ``peers`` are asked too about what it gets wrong."""

    def __init__(self, checker: Checker, plan: Plan, peers: Sequence[Checker], say: Callable[[str], None]) -> None:
        self.checker, self.plan = checker, plan
        self.profile = plan.profile or as_profile(checker.backend)
        self.peers = [peer for peer in peers if peer is not checker]
        self.survey: Survey | None = None
        self.artefacts: list[Artefact] = []
        self.groups: list[tuple[str, str]] = []
        self._say = say

    @property
    def wrong(self) -> bool:
        return bool(self.artefacts or self.groups)

    def search(self) -> None:
        """Draw, ask, shrink, write."""
        drawn = self.plan.seed if self.plan.seed is not None else secrets.randbelow(10**6)
        until = time.monotonic() + self.plan.minutes * 60 if self.plan.minutes else float("inf")
        database = None if self.plan.seed is not None else _database(self.checker)
        head = f"{self.checker.backend} {self.checker.version} in {self.checker.environment}: profile {self.profile.name}, seed {drawn}"
        self._say(head)
        budget = Budget(nodes=self.plan.nodes)
        search = Search(
            self.checker.ask,
            self.profile,
            budget,
            examples=self.plan.examples,
            seed_value=drawn,
            database=database,
            until=until,
        )
        self.survey = survey = search.run()
        counts = ", ".join(f"{name} {count}" for name, count in survey.counts.most_common())
        speed = survey.checks / max(survey.asking_seconds, 1e-9) * 60
        self._say(f"  {survey.schemas} schemas, {survey.checks} checks ({speed:,.0f} a minute of asking): {counts}")
        for finding in survey.findings:
            self._keep(finding, drawn)
        if survey.unshrunk:
            self._say(f"  answered differently the second time: {', '.join(survey.unshrunk)}")

    def _keep(self, finding: Finding, seed: int, front: str = "grammar") -> None:
        artefact = of_finding(
            finding, self.checker, seed=seed, profile=self.profile.name, front=front, others=self._others(finding)
        )
        path = artefact.save(self.plan.out)
        self.artefacts.append(artefact)
        self._say(f"\n  {finding.problem.outcome} ({finding.problem.key}): {as_text(artefact.question.schema)}")
        self._say(f"    {finding.problem.words}")
        for name, words in artefact.others.items():
            self._say(f"    {name}: {words}")
        self._say(f"    vllm-regress replay {path}")

    def _others(self, finding: Finding) -> dict[str, str]:
        """What other backends that claim to support the schema make of the same question: a disagreement has two sides."""
        able = [peer for peer in self.peers if features(finding.question.schema) <= as_profile(peer.backend).features]
        asked = {f"{peer.backend} {peer.version}": peer.ask(questions_of(finding)) for peer in able}
        return {name: found[0].words if found else "passing" for name, found in asked.items()}

    def ask_engine(self, session: Session, front: str) -> None:
        """Tens of schemas through vLLM: constrained and plain requests together, and an engine that lives on after each."""
        assert self.survey is not None
        asker = EngineChecker(
            session, session.target(self.checker.environment), self.checker.backend, front_named(front)
        )
        seed = self.plan.seed if self.plan.seed is not None else secrets.randbelow(10**6)
        until = time.monotonic() + (self.plan.minutes or 5) * 60
        known = tuple(self.survey.findings)
        search = Search(
            asker.ask,
            self.profile,
            Budget(nodes=self.plan.nodes),
            examples=min(self.plan.examples, 40),
            seed_value=seed,
            known=known,
            until=until,
        )
        found = search.run()
        counts = ", ".join(f"{name} {count}" for name, count in found.counts.most_common())
        self._say(
            f"\n  {front} engine: {found.schemas} schemas: {counts}; {len(found.findings)} that the grammar alone does not explain"
        )
        for finding in found.findings:
            self._keep(finding, seed, front)

    def ask_corpus(self, folders: list[Path]) -> None:
        """The standing questions that the profile claims."""
        groups = [*(group for folder in (BUILT_IN, *folders) for group in read(folder)), *minima()]
        claimed = [group for group in groups if group.claimed_by(self.profile)]
        for group in claimed:
            for problem in self.checker.ask(group.question)[:1]:
                self.groups.append((group.name, f"{problem.outcome}: {problem.words}"))
        self._say(
            f"\n  corpus: {len(claimed) - len(self.groups)} of {len(claimed)} pass, {len(groups) - len(claimed)} use what the profile lacks"
        )
        for name, words in self.groups:
            self._say(f"    {name}: {words}")

    def to_json(self) -> dict[str, object]:
        survey = self.survey
        assert survey is not None
        return {
            "backend": self.checker.backend,
            "version": self.checker.version,
            "environment": self.checker.environment,
            "profile": self.profile.name,
            "schemas": survey.schemas,
            "checks": survey.checks,
            "outcomes": dict(survey.counts),
            "findings": [artefact.to_json() for artefact in self.artefacts],
            "corpus": dict(self.groups),
        }


def checkers_of(session: Session, environment: str, backends: list[str], allowance: Allowance) -> list[Checker]:

    unknown = sorted(set(backends) - set(BACKENDS))
    if unknown:
        raise UsageError(f"--backend {unknown[0]!r}: allowed are {', '.join(BACKENDS)}")
    found = [Checker.if_there(session, environment, name, allowance) for name in backends or BACKENDS]
    there = [checker for checker in found if checker]
    if not there:
        raise UsageError(f"{environment} has none of {', '.join(backends or BACKENDS)} that can be driven")
    return there


def _database(checker: Checker) -> ExampleDatabase:
    """What earlier searches found, kept per environment and backend."""

    return DirectoryBasedExampleDatabase(
        writable_root() / "examples" / checker.environment.replace("/", "_") / checker.backend
    )
