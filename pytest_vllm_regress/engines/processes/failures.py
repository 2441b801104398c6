"""Failures of a child, turned into the error to raise: what is recorded about it, and when its
processes are ended.

``hung``, ``died`` and ``garbled`` take the dossier, end the processes and return the error.
``failed`` leaves the child alive: an exception in the target is its answer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from ...errors import (
    FIRST_ERROR,
    ChildDied,
    DeadlineExceeded,
    LimitExceeded,
    Part,
    Parts,
    ProtocolError,
    RemoteError,
    Unsupported,
    UsageError,
)
from ...target_site.vllm_regress_target.protocol import Frame
from ...util.deadline import Deadline
from ...util.masking import Masked, join_masked, mask
from . import dossier, logs, shortages
from .child_processes import GRACE_S, EngineProcesses
from .dossier import Dossier
from .logs import LogWindow

_LATE_S = 2.0  # a child that is ended so long after its deadline gets no time to handle TERM
_START_PHASES = ("start", "ready")


@dataclass(frozen=True)
class ChildFacts:
    """What is fixed about a child: its name, its log, Ray's directory, and what its interpreter has
    installed (``about``, for dossiers)."""

    name: str
    log: Path
    ray_dir: Path | None = None
    about: str = ""


@dataclass(frozen=True)
class RemoteFailure:
    """An exception in the target process, as its reply describes it; all texts are masked.

    ``chain`` has one ``Class: message`` per line, the root cause first. ``claim``: why a request is
    unsupported (fields of ``Unsupported``).
    """

    type_name: str
    message: Masked
    chain: Masked
    traceback: Masked
    engine_died: bool
    claim: Mapping[str, str]

    @classmethod
    def decode(cls, reply: Frame) -> RemoteFailure:
        """Read a reply whose ``ok`` is false."""
        type_name, message = mask(str(reply.get("type"))), mask(str(reply.get("message")))
        chain = reply.get("chain") or [f"{type_name}: {message}"]
        claim = {
            str(name): mask(str(text)) for name, text in dict(reply.get("claim") or {}).items()
        }
        return cls(
            type_name,
            message,
            join_masked("\n", (mask(str(link)) for link in chain)),
            mask(str(reply.get("traceback", ""))),
            bool(reply.get("engine_died")),
            claim,
        )

    @property
    def short_type(self) -> str:
        """The name of the exception's class, without ``builtins``."""
        return self.type_name.removeprefix("builtins.")

    def refusal(self) -> Unsupported | UsageError | None:
        """The error for a request that the target refused on purpose; None for any other exception."""
        if self.type_name == "vllm_regress_target.Unsupported":
            return Unsupported(self.message, **self.claim)
        if self.type_name == "vllm_regress_target.WrongRequest":
            return UsageError(self.message)
        return None


class Life(Protocol):
    """The processes whose failures are reported: those of a child or of an agent."""

    limit: str
    limit_name: str

    @property
    def alive(self) -> bool: ...
    @property
    def exit_status(self) -> int | None: ...
    def processes(self) -> list[psutil.Process]: ...
    def wait_for_exit_report(self) -> None: ...
    def describe_end(self) -> str: ...
    def kill(self, grace_s: float = GRACE_S) -> None: ...


class ChildFailures:
    """Makes the errors of one child, or of an agent."""

    def __init__(
        self,
        facts: ChildFacts,
        life: Life,
        window: LogWindow,
        engine: EngineProcesses,
    ) -> None:
        self._name, self._facts = facts.name, facts
        self._life, self._logs, self._engine = life, window, engine
        self._room_at_start = shortages.available()
        self._last_reply: tuple[str, float] | None = None

    def note_reply(self, phase: str) -> None:
        """Remember that the child answered now, in ``phase``."""
        self._last_reply = (phase, time.monotonic())

    @property
    def alive(self) -> bool:
        """Whether the child still runs."""
        return self._life.alive

    def failed(self, failure: RemoteFailure, deadline: Deadline) -> Exception:
        """Return the error for an exception in the target."""
        if refusal := failure.refusal():
            return refusal
        if gap := self._simulation_gap(failure.chain):
            return gap
        message: str = failure.message
        if (
            deadline.phase in _START_PHASES
        ):  # the cause may lie in another process, which could not always report it
            message += self._root_cause() if "root cause" in message else self._shortage()
        return self.error(
            f"{self._name} raised {failure.short_type}: {message}",
            phase=deadline.phase,
            type_name=failure.type_name,
            detail=failure.traceback + self.log_tail(),
            died=failure.engine_died,
            exception=failure.chain,
            traceback=failure.traceback,
        )

    def error(
        self,
        message: str,
        *,
        phase: str,
        type_name: str = "",
        detail: str = "",
        died: bool = False,
        **parts: Masked,
    ) -> RemoteError:
        """Return the error for a failure that the target reported; ``parts`` by name.

        The engine counts as dead when one of its processes is gone.
        """
        return RemoteError(
            message,
            phase=phase,
            detail=detail,
            type_name=type_name,
            parts=self.parts(**{"exception": mask(message), **parts}),
            engine_died=died or bool(self._engine.lost()),
        )

    def hung(self, deadline: Deadline, why: str, **parts: Masked) -> DeadlineExceeded:
        """Take the dossier, end the processes, and return the error for a missing answer.

        Who ends a hung engine, and how fast? Stop all processes, take stacks (``dossier.py``, 1.8 s),
        then TERM, KILL after at most 1 s, and the nanny last (``child_processes.py``).
        """
        record = self._record("gave no answer", deadline)
        all_parts = self.parts(stacks=record.stack_text, **parts)
        shortage = self._shortage() if deadline.phase in _START_PHASES else ""
        late = deadline.clock() - deadline.at
        self._life.kill(grace_s=min(GRACE_S, max(0.0, _LATE_S - late)))
        happened = "missed its deadline" if deadline.passed else "hangs"
        return DeadlineExceeded(
            f"{self._name} {happened}: {why}{shortage}",
            phase=deadline.phase,
            detail=str(record),
            parts=all_parts,
        )

    def died(self, deadline: Deadline, why: str) -> ChildDied | LimitExceeded | Unsupported:
        """Take the dossier, end what is left, and return the error for a child that has ended."""
        self._life.wait_for_exit_report()
        record = self._record("died", deadline)
        how = self._life.describe_end()
        return self._dead(deadline, record, how, f"{why} ({how}){self._root_cause()}")

    def engine_died(self, deadline: Deadline, why: str) -> ChildDied | LimitExceeded | Unsupported:
        """Take the dossier, end the processes, and return the error for an engine that has died
        below a living child."""
        record = self._record("died", deadline)
        return self._dead(deadline, record, "", why + self._shortage())

    def _dead(
        self, deadline: Deadline, record: Dossier, how: str, why: str
    ) -> ChildDied | LimitExceeded | Unsupported:
        parts = self.parts(stacks=record.stack_text, exit=Masked(self._life.limit or how))
        self._life.kill()
        if gap := self._simulation_gap():
            return gap
        if self._life.limit:
            message = f"{self._name} was ended: {self._life.limit}"
            return LimitExceeded(
                message,
                phase=deadline.phase,
                detail=str(record),
                parts=parts,
                limit=self._life.limit_name,
            )
        return ChildDied(
            f"{self._name} died: {why}",
            phase=deadline.phase,
            detail=str(record),
            parts=parts,
            engine_died=self._engine.adopted,
        )

    def garbled(self, deadline: Deadline, why: Masked) -> ProtocolError:
        """Take the dossier, end the processes, and return the error for something that is no frame or no
        reply: a child that sends this counts as crashed. The limit of a frame is in ``protocol.py``.
        """
        record = self._record("broke the protocol", deadline)
        parts = self.parts(exit=Masked(f"sent something that is no reply: {why}"))
        self._life.kill()
        message = f"{self._name} sent something that is no reply: {why}"
        return ProtocolError(message, phase=deadline.phase, detail=str(record), parts=parts)

    def parts(self, **more: Masked) -> Parts:
        """Return the parts of a failure: the log, the engine processes that are gone, and ``more``
        by name. Empty ones are left out."""
        lost = [Masked(f"engine process {words}") for words in self._engine.lost()]
        exits = join_masked("\n", filter(None, (more.pop("exit", Masked("")), *lost)))
        texts = {"log": self._logs.text(), "exit": exits, **more}
        return {Part(name): text for name, text in texts.items() if text}

    def dossier(self, title: str) -> str:
        """Return stacks, logs and resources of the processes, which go on afterwards."""
        return str(self._dossier(title))

    def log_tail(self) -> str:
        """Return the end of the log under a heading; empty when nothing was logged."""
        tail = logs.log_tail(self._facts.log)
        return f"\n-- log\n{tail}" if tail else ""

    def _record(self, what: str, deadline: Deadline) -> Dossier:
        return self._dossier(f"{self._name} {what} in phase {deadline.phase}", deadline)

    def _dossier(self, title: str, failed: Deadline | None = None) -> Dossier:
        """Compile a dossier. ``failed``: the deadline of a wait that has failed.

        The processes then stay stopped, as they are about to be ended.
        """
        progress = "nothing was answered"
        if self._last_reply is not None:
            phase, at = self._last_reply
            progress = f"last answer {time.monotonic() - at:.1f} s ago, in phase {phase}"
        facts = filter(
            None, (self._facts.about, f"progress: {progress}", f"left: {shortages.available()}")
        )
        not_run = dossier.time_not_run(failed) if failed else ()
        return dossier.compile_dossier(
            title=title,
            processes=self._life.processes(),
            logs=[self._facts.log],
            ray_dir=self._facts.ray_dir,
            facts=(*facts, *not_run),
            resume=failed is None,
        )

    def _simulation_gap(self, chain: str = "") -> Unsupported | None:
        """Return the error for a request that the simulated device cannot serve, where any of the
        processes said so."""
        gap = logs.simulation_gap(f"{chain}\n{self._logs.text()}")
        return Unsupported(gap, device="sim") if gap else None

    def _root_cause(self) -> str:
        """Return the first error of the log and a shortage, as the end of a sentence."""
        error = logs.root_cause(self._logs.text())
        silent = self._life.alive and logs.names_no_cause(error)
        cause = f"; {FIRST_ERROR}{error}" if error else ""
        return cause + self._shortage(status=self._life.exit_status, silent=silent)

    def _shortage(self, *, status: int | None = None, silent: bool = False) -> str:
        """Return which resource the processes may have run out of, as the end of a sentence; empty
        when none was short."""
        shortage = shortages.shortage(
            self._room_at_start,
            shortages.available(),
            self._logs.text(),
            status=status,
            silent=silent,
        )
        return f"; {shortage}" if shortage else ""
