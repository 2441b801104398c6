"""Ask one backend in one environment. The backend runs in a child process; a crash, hang or memory
overrun becomes an outcome.

Each question may take 10 s and 2 GiB (``Allowance``; ``--limit`` of
`vllm-regress fuzz schemas`). The controller kills the child at the deadline (TIME_OUT), the nanny
when it exceeds a limit (OUT_OF_MEMORY; for too many processes CRASH). A child that ends otherwise
is a CRASH, which is a finding like any other. The next question gets a new child.

The backend is asked and its grammar is not parsed here, so the harness needs no knowledge of any
grammar format, and no engine.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from ...engines.processes.child import Child
from ...engines.session import Session
from ...environments.installed import read_installed
from ...errors import ChildDied, DeadlineExceeded, LimitExceeded, RemoteError, Unsupported
from ...util.codec import Document, Meta
from ...util.deadline import Deadline
from ...util.sizes import GIB
from ..finding import Problem
from ..kept import kept_child
from .schema_oracle import Outcome, SchemaQuestion, error_kind, first_line, problems

logger = logging.getLogger("vllm_regress.fuzz")

BACKENDS = ("lm-format-enforcer", "xgrammar", "llguidance", "outlines")
PACKAGES = {"outlines": "outlines-core"}
"""Distribution names of the backends that are named differently."""
_IMPORT_S = 180.0
_LIMIT_OPTIONS = {"memory": "--limit memory of vllm-regress fuzz schemas"}


class Allowance(Document, frozen=True, omit_defaults=False):
    """Limits for one question:

    ``seconds`` until the child is killed, and ``memory`` in bytes of the child and its descendants.
    """

    seconds: Annotated[float, Meta(gt=0, le=3600)] = 10.0
    memory: Annotated[float, Meta(ge=2**20)] = 2.0 * GIB


_HOST = "vllm_regress_target.hosts.grammar"


class BackendChecker:
    """Asks one backend.

    A child that hangs, dies or uses too much memory is replaced for the next question.
    """

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
        self._agent = session.agents.bare(environment, {"memory": allowance.memory}, _LIMIT_OPTIONS)
        self._child = kept_child(self._start)
        deadline = Deadline.after("import", _IMPORT_S)
        self.versions = read_installed(self._agent.python).packages
        self.package = PACKAGES.get(backend, backend)
        try:
            usable = self._agent.warm_grammars(
                deadline, tokenizer=Path(self.tokenizer), backends=[backend]
            )
        except RemoteError as error:
            raise Unsupported(
                f"{environment}: {self.package} {self.version} cannot be used: {first_line(error.args[0])}",
                refused_by=f"{self.package} {self.version}",
            ) from None
        if not usable:
            raise Unsupported(f"{environment} has no {self.package}", needs=self.package)

    @property
    def python(self) -> Path:
        """Interpreter of the environment."""
        return self._agent.python

    @property
    def version(self) -> str:
        """Version of the backend."""
        return self.versions[self.package]

    def ask(self, question: SchemaQuestion) -> tuple[Problem, ...]:
        """Return all problems with the backend's answers to a question; empty if it passes.

        A child that ends counts as a crash, and so does one that was killed for its number of
        processes. Raises ``LimitExceeded`` when the session's time is used up, which says nothing
        about the backend.
        """
        try:
            return problems(question, self.reply(question))
        except LimitExceeded as error:
            return (limit_problem(error),)
        except DeadlineExceeded as error:
            words = f"no answer within {self.allowance.seconds:g} s"
            return (Problem(Outcome.TIME_OUT, words, "time", error.detail[:20000] or None),)
        except RemoteError as error:
            if error.type_name != "builtins.MemoryError":
                raise
            return (Problem(Outcome.OUT_OF_MEMORY, "MemoryError", "memory"),)
        except ChildDied as error:
            kind = error_kind("died", error.args[0].rpartition("(")[2])
            return (Problem(Outcome.CRASH, first_line(error.args[0]), kind),)

    def reply(self, question: SchemaQuestion) -> Mapping[str, Any]:
        """Return the backend's reply as described in ``hosts.grammar.check_schema``.

        Raises ``ChildError`` if there is none.
        """
        child = self._child.get()
        deadline = Deadline.after("probe", self.allowance.seconds)
        fields = {name: getattr(question, name) for name in question.__struct_fields__}
        arguments = {"backend": self.backend, "tokenizer": self.tokenizer, "question": fields}
        answer = child.request(
            "call", deadline, file=_HOST, function="check_schema", arguments=arguments
        )
        assert isinstance(answer, dict)
        return answer

    def close(self) -> None:
        """Stop the child."""
        self._child.drop()

    def _start(self) -> Child:
        logger.info(
            "starting a child for %s %s in %s", self.package, self.version, self.environment
        )
        deadline = Deadline.after("import", _IMPORT_S)
        child = self._agent.start_child("probe", deadline, label=self.backend)
        arguments = {"tokenizer": self.tokenizer, "backends": [self.backend]}
        child.request("call", deadline, file=_HOST, function="warm", arguments=arguments)
        return child


def limit_problem(error: LimitExceeded) -> Problem:
    """Return a limit that a child was killed for as a problem.

    Raises ``error`` if the child did not cause it.
    """
    outcomes = {"memory": Outcome.OUT_OF_MEMORY, "processes": Outcome.CRASH}
    if error.limit not in outcomes:
        raise error
    return Problem(outcomes[error.limit], first_line(error.args[0]), error.limit)
