"""What the plugin sees during one leg of a test: replies of the target, the phase reached, the
exception, the time spent."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..cases.results import wall_time
from ..engines.running import SchemaFilter
from ..util.masking import mask
from ..util.text import printable

if TYPE_CHECKING:
    import pytest

    from ..cases.model import Symptom
    from ..cases.observation import Mechanism
    from ..engines.processes.child import Child
    from ..engines.processes.early_exit import EarlyExitPolicy
    from ..engines.spec import EngineSpec
    from ..errors import Parts
    from .fault_injection import FaultInjection

SUBJECT, CONTROL = "subject", "control"
MAX_REPLIES = 3


@dataclass
class Leg:
    """What the fixtures and hooks saw during one leg of a test. ``replies`` counts answers of the target;
    ``last_replies`` keeps some.

    ``changes``: EngineSpec fields that this leg changes; ``probe``: arguments of its probe that it
    changes; ``spec``: the engine that it had.
    ``error``: the first exception of the leg; ``later_errors``: those of its teardown.
    ``line``: file and line of the test in which ``error`` was raised.
    ``uncovered``: files of the project that the test read and no proof covers.
    ``missed_log``: the test has read a log of which a part had been left out.
    ``symptom``: what the case documents, None for a test without a case.
    ``engine``: what the engine, or the probe, logged and which of its processes were gone when the
    test had failed; ``dead``: the engine was dead.
    ``fault``: an injected failure that replaces the answers of the target. ``smaller_engine``: the
    leg runs on a smaller engine; it keeps the engine's ``dossier`` if it works, and the engine is
    not used again. ``gpu``: what a record says of the GPU. ``early_exit``: what may end its waits
    before their deadline (None: the session's default).
    """

    name: str = SUBJECT
    replies: int = 0
    last_replies: deque[object] = field(default_factory=lambda: deque(maxlen=MAX_REPLIES))
    phase: str = "probe"
    error: BaseException | None = None
    later_errors: list[BaseException] = field(default_factory=list)
    symptom: Symptom | None = None
    uncovered: list[str] = field(default_factory=list)
    missed_log: bool = False
    line: str = ""
    skipped: str | None = None
    at_work: list[Mechanism] = field(default_factory=list)
    engine: Parts = field(default_factory=dict)
    dead: bool = False
    reports: list[pytest.TestReport] = field(default_factory=list)
    started_at: float = field(default_factory=wall_time)
    started: float = field(default_factory=time.monotonic)
    control_used: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)
    probe: Mapping[str, Any] = field(default_factory=dict)
    schemas: SchemaFilter = field(default_factory=SchemaFilter)
    spec: EngineSpec | None = None
    smaller_engine: bool = False
    fault: FaultInjection | None = None
    dossier: str = ""
    minimized: str = ""
    gpu: Mapping[str, str] = field(default_factory=dict)
    early_exit: EarlyExitPolicy | None = None
    protocol_started: float = field(default_factory=time.monotonic)

    @property
    def errors(self) -> Iterator[BaseException]:
        """All exceptions in their order; of a group (Hypothesis reports one for each failure that
        it found) its members."""
        waiting = [*self.later_errors[::-1], *([self.error] if self.error else [])]
        while waiting:
            error = waiting.pop()
            if isinstance(error, BaseExceptionGroup):
                waiting += error.exceptions[::-1]
            else:
                yield error

    @property
    def is_subject(self) -> bool:
        """Whether the verdict is about this leg: it is not a control leg, and has neither an
        injected fault nor a smaller engine."""
        return self.name == SUBJECT and self.fault is None and not self.smaller_engine

    def changed_spec(self, spec: EngineSpec) -> EngineSpec:
        """Return the engine of this leg: ``spec`` with the leg's changes."""
        self.spec = spec.merged_with(self.changes)
        self.control_used |= self.spec != spec
        return self.spec

    def record_engine(self, child: Child) -> None:
        """Store the engine's log and the processes that have ended if the leg failed, or the
        dossier of a smaller engine that works."""
        self.missed_log |= child.logs.missed
        if self.error is not None:
            self.engine = child.failures.parts()
            self.dead = child.engine_is_dead
        elif self.smaller_engine:
            self.dossier = child.failures.dossier("an engine that works")

    def changed_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return a probe's arguments with the changes of this leg."""
        changed = {name: value for name, value in self.probe.items() if name in arguments}
        self.control_used |= any(arguments[name] != value for name, value in changed.items())
        return {**arguments, **changed}

    def replied(self, phase: str, reply: object = None) -> None:
        """Record that the target answered in ``phase``, and what, if that can be shown."""
        self.replies += 1
        if reply is not None:
            self.last_replies.append(reply)
        self.phase = phase


def sanitize(text: str) -> str:
    """Mask a text from a target process or a case file, and escape characters that could control
    the terminal, except tabs."""
    return "\t".join(map(printable, mask(text).split("\t")))
