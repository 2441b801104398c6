"""One backend in one environment, in a child that may be killed: asks, and turns every way of not answering into an outcome."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..engines.session import Session
from ..environments.installed import read_installed
from ..errors import ChildDied, DeadlineExceeded, LimitExceeded, RemoteError, Unsupported
from ..processes.child import Child
from ..util.deadline import Deadline
from ..util.sizes import GIB
from .oracle import Outcome, Problem, Question, first_line, kind_of, problems

BACKENDS = ("lm-format-enforcer", "xgrammar", "llguidance", "outlines")
PACKAGES = {"outlines": "outlines-core"}
"""The distribution of a backend, where it is not its name."""
_IMPORT_S = 180.0


@dataclasses.dataclass(frozen=True)
class Allowance:
    """What one question may take: ``seconds`` until the child is killed, and ``memory`` in bytes of all it starts."""

    seconds: float = 10.0
    memory: float = 2 * GIB


class Checker:
    """Asks one backend. A child that hangs, dies or grows too large is replaced; the next question is unharmed."""

    def __init__(
        self,
        session: Session,
        environment: str,
        backend: str,
        allowance: Allowance | None = None,
        tokenizer: Path | None = None,
    ) -> None:
        allowance = allowance or Allowance()
        self.environment, self.backend, self.allowance = environment, backend, allowance
        self.tokenizer = str(tokenizer or Path(session.model_path("text"), "tokenizer.json"))
        self._agent = session.bare_agent(environment, {"memory": allowance.memory})
        self._child: Child | None = None
        deadline = Deadline.after("import", _IMPORT_S)
        self.versions = read_installed(self._agent.python).packages
        self.package = PACKAGES.get(backend, backend)
        try:
            usable = self._agent.warm_grammars(deadline, tokenizer=Path(self.tokenizer), backends=[backend])
        except RemoteError as error:
            raise Unsupported(
                f"{environment}: {self.package} {self.version} cannot be driven: {first_line(error.args[0])}",
                refused_by=f"{self.package} {self.version}",
            ) from None
        if not usable:
            raise Unsupported(f"{environment} has no {self.package}", needs=self.package)

    @classmethod
    def if_there(
        cls,
        session: Session,
        environment: str,
        backend: str,
        allowance: Allowance | None = None,
        tokenizer: Path | None = None,
    ) -> Checker | None:
        """A checker, or None where the environment has not that backend."""
        try:
            return cls(session, environment, backend, allowance, tokenizer)
        except Unsupported:
            return None

    @property
    def python(self) -> Path:
        """The interpreter that is asked."""
        return self._agent.python

    @property
    def version(self) -> str:
        """The backend's version."""
        return self.versions[self.package]

    def ask(self, question: Question) -> tuple[Problem, ...]:
        """Everything wrong with what the backend makes of a question; nothing when it passes."""
        try:
            return problems(question, self.reply(question))
        except LimitExceeded as error:
            return (Problem(Outcome.OUT_OF_MEMORY, "memory", first_line(error.args[0])),)
        except DeadlineExceeded as error:
            return (
                Problem(
                    Outcome.TIME_OUT,
                    "time",
                    f"no answer within {self.allowance.seconds:g} s",
                    error.detail[:20000] or None,
                ),
            )
        except RemoteError as error:
            if error.type_name != "builtins.MemoryError":
                raise
            return (Problem(Outcome.OUT_OF_MEMORY, "memory", "MemoryError"),)
        except ChildDied as error:
            return (
                Problem(Outcome.CRASH, kind_of("died", error.args[0].rpartition("(")[2]), first_line(error.args[0])),
            )

    def reply(self, question: Question, **more: Any) -> Mapping[str, Any]:
        """The backend's answers as the target gives them; raises ``ChildError`` where it gives none. Numbers are in ``hosts.grammar``."""
        child = self._living()
        deadline = Deadline.after("probe", self.allowance.seconds)
        asked = {field.name: getattr(question, field.name) for field in dataclasses.fields(question)}
        answer = child.request("check", deadline, backend=self.backend, tokenizer=self.tokenizer, **asked, **more)
        assert isinstance(answer, dict)
        return answer

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.stop(Deadline.after("stop", 2.0))
            self._child = None

    def _living(self) -> Child:
        if self._child is None or not self._child.alive:
            deadline = Deadline.after("import", _IMPORT_S)
            self._child = self._agent.fork("grammar", deadline, label=self.backend)
            self._child.request("warm", deadline, backend=self.backend, tokenizer=self.tokenizer)
        return self._child
