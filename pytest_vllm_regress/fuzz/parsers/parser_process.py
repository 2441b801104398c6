"""Asks the parsers of one environment, in a probe process.

A process that hangs or dies is replaced, and what it was asked is a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from ...engines.checkpoints.forge import ensure_tokenizer
from ...engines.inputs.formats import Format
from ...engines.processes.child import Child
from ...engines.session import Session
from ...errors import ChildDied, DeadlineExceeded
from ...util.codec import Document, Meta
from ...util.deadline import Deadline
from ...util.paths import writable_root
from ..kept import kept_child
from .meaning import TOOLS
from .parser_oracle import DEATH, NO_ANSWER
from .parser_question import ParserQuestion, ParserReply

HOST = "vllm_regress_target.hosts.parsing"
_START_S = 120.0
ParserKind = Literal["tool", "reasoning"]
Ask = Callable[[Sequence[ParserQuestion]], list[ParserReply]]


class ParserName(Document, frozen=True, omit_defaults=False):
    """A registered parser. ``aliases``: other names of the same class."""

    kind: ParserKind
    name: Annotated[str, Meta(min_length=1, max_length=100)]
    aliases: Annotated[tuple[str, ...], Meta(max_length=20)] = ()

    def __str__(self) -> str:
        return self.name if self.kind == "tool" else f"{self.name} (reasoning)"


class ParserProcess:
    """Asks the parsers of one environment.

    ``seconds``: time for one question, with all its cuts, after which the process is killed.
    """

    def __init__(self, session: Session, environment: str, seconds: float = 30.0) -> None:
        self._session, self._seconds = session, seconds
        self._target = session.target(environment)
        self._child = kept_child(self._start)

    def registered(self) -> tuple[list[ParserName], list[ParserName]]:
        """Return the registered parsers, one for each class, and those that cannot be loaded here."""
        reply = self._call("registered", _START_S)
        usable, unusable = [], []
        kinds: tuple[ParserKind, ...] = ("tool", "reasoning")
        for kind in kinds:
            names: dict[str, list[str]] = {}
            for name, found in reply[kind].items():
                if found:
                    names.setdefault(found, []).append(name)
                else:
                    unusable.append(ParserName(kind, name))
            usable += [ParserName(kind, first, tuple(others)) for first, *others in names.values()]
        return usable, unusable

    def ask(
        self, parser: ParserName, form: Format, questions: Sequence[ParserQuestion]
    ) -> list[ParserReply]:
        """Return the reply to each question.

        One that hangs or kills the process is answered with an error.
        """
        return with_failures(lambda some: self._replies(parser, form, some), questions)

    def _replies(
        self, parser: ParserName, form: Format, questions: Sequence[ParserQuestion]
    ) -> list[ParserReply]:
        tokenizer = ensure_tokenizer(form.tokens, writable_root() / "checkpoints")
        names = {"tool": "", "reasoning": "", parser.kind: parser.name}
        reply = self._call(
            "ask",
            self._seconds + len(questions),
            **names,
            tokenizer=str(tokenizer),
            tools=list(TOOLS) if parser.kind == "tool" else [],
            questions=[question.to_request() for question in questions],
        )
        answers: list[ParserReply] = reply["answers"]
        return answers

    def _start(self) -> Child:
        child = self._session.probe(self._target, "fuzz")
        request(child, "registered", Deadline.after("import", _START_S))
        return child

    def _call(self, function: str, seconds: float, **arguments: object) -> Mapping[str, Any]:
        child = self._child.get()
        return request(child, function, Deadline.after("probe", seconds), **arguments)

    def close(self) -> None:
        """Stop the process."""
        self._child.drop()


def request(
    child: Child, function: str, deadline: Deadline, **arguments: object
) -> Mapping[str, Any]:
    """Return the answer of a function of the host."""
    value = child.request("call", deadline, file=HOST, function=function, arguments=arguments)
    assert isinstance(value, dict)
    return value


def with_failures(ask: Ask, questions: Sequence[ParserQuestion]) -> list[ParserReply]:
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
