"""Fuzz one backend: search with drawn questions, check the corpus, test whole engines, and write
what fails to files."""

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
from .artefact import Artefact, artefact_from_finding, format_schema
from .checker import BACKENDS, Allowance, Checker
from .corpus import BUILT_IN, read, shipped_findings
from .engine_checker import EngineChecker
from .finding import Finding, minimal_question
from .oracle import Question
from .schema_judge import NotJudged
from .search import Search, SearchPlan, SearchResult


@dataclasses.dataclass(frozen=True)
class CampaignOptions:
    """Options that are the same for all backends.

    Attributes:
        profile: features that schemas may use; None for those each backend claims to support.
        examples: number of questions in each round of the search.
        nodes: maximum size of a schema in subschemas.
        seed: None draws a new seed each time.
        minutes: time limit of each backend's search; None for no limit.
        out: folder for the findings.
    """

    profile: Profile | None = None
    examples: int = 200
    nodes: int = 12
    seed: int | None = None
    minutes: float | None = None
    out: Path = Path("findings")


class Campaign:
    """Fuzzes one backend. Its failing questions are also put to ``peers``."""

    def __init__(
        self,
        checker: Checker,
        options: CampaignOptions,
        peers: Sequence[Checker],
        write_line: Callable[[str], None],
    ) -> None:
        self.checker, self.options = checker, options
        self.profile = options.profile or as_profile(checker.backend)
        self.peers = [peer for peer in peers if peer is not checker]
        self.result: SearchResult | None = None
        self.artefacts: list[Artefact] = []
        self.corpus_failures: list[tuple[str, str]] = []
        self._write_line = write_line

    @property
    def failed(self) -> bool:
        """Whether any finding or corpus failure was seen."""
        return bool(self.artefacts or self.corpus_failures)

    def search(self) -> None:
        """Search for failures with drawn questions, shrink them and write each one to a file."""
        seed = self._draw_seed()
        until = (
            time.monotonic() + self.options.minutes * 60 if self.options.minutes else float("inf")
        )
        database = None if self.options.seed is not None else _database(self.checker)
        head = f"{self.checker.backend} {self.checker.version} in {self.checker.environment}: profile {self.profile.name}, seed {seed}"
        self._write_line(head)
        plan = SearchPlan(
            self.profile, Budget(nodes=self.options.nodes), self.options.examples, seed
        )
        self.result = result = Search(self.checker.ask, plan, database=database, until=until).run()
        counts = ", ".join(f"{name} {count}" for name, count in result.counts.most_common())
        speed = result.checks / max(result.asking_seconds, 1e-9) * 60
        self._write_line(
            f"  {result.schemas} schemas, {result.checks} checks ({speed:,.0f} a minute of backend time): {counts}"
        )
        for finding in result.findings:
            self._save(finding, seed)
        if result.flaky:
            self._write_line(f"  answered differently the second time: {', '.join(result.flaky)}")

    def _draw_seed(self) -> int:
        return self.options.seed if self.options.seed is not None else secrets.randbelow(10**6)

    def _save(self, finding: Finding, seed: int, front: str = "grammar") -> None:
        artefact = artefact_from_finding(
            finding,
            self.checker,
            seed=seed,
            profile=self.profile.name,
            front=front,
            others=self._others(finding),
        )
        path = artefact.save(self.options.out)
        self.artefacts.append(artefact)
        self._write_line(
            f"\n  {finding.problem.outcome} ({finding.problem.key}): {format_schema(artefact.question.schema)}"
        )
        self._write_line(f"    {finding.problem.words}")
        for name, words in artefact.others.items():
            self._write_line(f"    {name}: {words}")
        self._write_line(f"    vllm-regress replay {path}")

    def _others(self, finding: Finding) -> dict[str, str]:
        """Return the answers of the other backends that claim to support the schema, to show where
        backends disagree."""
        peers = [
            peer
            for peer in self.peers
            if features(finding.question.schema) <= as_profile(peer.backend).features
        ]
        return {
            f"{peer.backend} {peer.version}": _worst(peer, minimal_question(finding))
            for peer in peers
        }

    def ask_engine(self, session: Session, front: str) -> None:
        """Send tens of schemas through vLLM, in batches of constrained and plain requests that the
        engine must survive."""
        assert self.result is not None
        checker = EngineChecker(
            session,
            session.target(self.checker.environment),
            self.checker.backend,
            front_named(front),
        )
        seed = self._draw_seed()
        until = time.monotonic() + (self.options.minutes or 5) * 60
        known = tuple(self.result.findings)
        plan = SearchPlan(
            self.profile, Budget(nodes=self.options.nodes), min(self.options.examples, 40), seed
        )
        result = Search(checker.ask, plan, known=known, until=until).run()
        counts = ", ".join(f"{name} {count}" for name, count in result.counts.most_common())
        self._write_line(
            f"\n  {front} engine: {result.schemas} schemas: {counts}; {len(result.findings)} findings that the grammar alone does not explain"
        )
        for finding in result.findings:
            self._save(finding, seed, front)

    def ask_corpus(self, folders: list[Path]) -> None:
        """Check the corpus: the built-in questions, those below ``folders`` and the shipped
        findings, as far as the profile covers them."""
        groups = [
            *(group for folder in (BUILT_IN, *folders) for group in read(folder)),
            *shipped_findings(),
        ]
        claimed = [group for group in groups if group.claimed_by(self.profile)]
        not_judged = []
        for group in claimed:
            try:
                for problem in self.checker.ask(group.question)[:1]:
                    self.corpus_failures.append((group.name, f"{problem.outcome}: {problem.words}"))
            except NotJudged as error:
                not_judged.append((group.name, f"skipped: {error}"))
        judged = len(claimed) - len(not_judged)
        self._write_line(
            f"\n  corpus: {judged - len(self.corpus_failures)} of {judged} pass, "
            f"{len(groups) - len(claimed)} skipped because the profile does not cover them"
        )
        for name, words in (*self.corpus_failures, *not_judged):
            self._write_line(f"    {name}: {words}")

    def to_json(self) -> dict[str, object]:
        result = self.result
        assert result is not None
        return {
            "backend": self.checker.backend,
            "version": self.checker.version,
            "environment": self.checker.environment,
            "profile": self.profile.name,
            "schemas": result.schemas,
            "checks": result.checks,
            "outcomes": dict(result.counts),
            "findings": [artefact.to_json() for artefact in self.artefacts],
            "corpus": dict(self.corpus_failures),
        }


def _worst(peer: Checker, question: Question) -> str:
    """Return the worst problem of a backend with a question, in words."""
    try:
        problems = peer.ask(question)
    except NotJudged as error:
        return str(error)
    return problems[0].words if problems else "passing"


def create_checkers(
    session: Session, environment: str, backends: list[str], allowance: Allowance
) -> list[Checker]:
    """Return a checker for each backend that the environment has.

    Raises ``UsageError`` if there are none.
    """
    unknown = sorted(set(backends) - set(BACKENDS))
    if unknown:
        raise UsageError(f"--backend {unknown[0]!r}: allowed are {', '.join(BACKENDS)}")
    names = backends or BACKENDS
    candidates = [
        Checker.create_if_installed(session, environment, name, allowance) for name in names
    ]
    checkers = [checker for checker in candidates if checker]
    if not checkers:
        raise UsageError(f"{environment} has no usable installation of {', '.join(names)}")
    return checkers


def _database(checker: Checker) -> ExampleDatabase:
    """Return the database of examples that earlier searches found, one for each environment and
    backend."""
    return DirectoryBasedExampleDatabase(
        writable_root() / "examples" / checker.environment.replace("/", "_") / checker.backend
    )
