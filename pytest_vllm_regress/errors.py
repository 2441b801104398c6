"""Every error the package raises on purpose. One base class; a message says what happened, where, what is allowed and what to do next."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType


class Kind(enum.StrEnum):
    """What one run of a test came to. The first five are failures that a case may document."""

    EXCEPTION = "exception"
    WRONG_RESULT = "wrong-result"
    HANG = "hang"
    CRASH = "crash"
    ENGINE_DEATH = "engine-death"
    PASSED = "passed"
    NOT_APPLICABLE = "not-applicable"
    LIMIT = "limit"
    USAGE = "usage"


class Part(enum.StrEnum):
    """The places in which something of a failure can be read. A symptom names those in which it must be found."""

    EXCEPTION = "exception"
    """The chain of exceptions that the test met: one ``Class: message`` each, the root first."""
    TRACEBACK = "traceback"
    """The traceback of the target process."""
    ASSERTION = "assertion"
    """What the test asserted, in its own words."""
    ANSWER = "answer"
    """What the server answered: status and body; of a missing answer, what its health says instead."""
    LOG = "log"
    """What the engine's processes have written since the test took the engine, or the probe was called."""
    STACKS = "stacks"
    """Each process of the engine with its stack and what it waits for."""
    EXIT = "exit"
    """How a process ended: status, signal or limit; and which of the engine's processes are gone."""


Parts = Mapping[Part, str]


class RegressError(Exception):
    """Base of all errors raised on purpose."""


class UsageError(RegressError):
    """The user asked for something impossible: an unknown name, a wrong value, a device that is not there."""


class CaseFileError(UsageError):
    """A case file is malformed: names file, key, value and what is allowed."""


class EnvironmentFileError(UsageError):
    """environments.toml is malformed or names an unknown environment."""


class BuildError(RegressError):
    """A target environment could not be built; names the requirement that failed. Nothing half-built is left."""


class NotAtWork(RegressError):
    """A test's positive control failed: what the case is about was not at work, so that a pass or a failure says nothing."""


class Unsupported(RegressError):
    """The installed version, or the device, does not have what a spec asks for. Becomes NOT_APPLICABLE.

    That is a claim like others: ``since`` or ``until`` say which versions have it (``0.9.2``), ``device`` which device cannot do it,
    ``needs`` what must be installed, ``refused_by`` which installed version refuses it in its own words. A case is not applicable only where
    one of them is given.
    """

    def __init__(
        self,
        message: str,
        *,
        since: str = "",
        until: str = "",
        device: str = "",
        needs: str = "",
        refused_by: str = "",
    ) -> None:
        super().__init__(message)
        self.since = since
        self.until = until
        self.device = device
        self.needs = needs
        self.refused_by = refused_by

    @property
    def claim(self) -> str:
        """Since, until or where, in words; empty where nothing was claimed."""
        words = (
            f"since vLLM {self.since}" if self.since else "",
            f"until vLLM {self.until}" if self.until else "",
            f"not on device {self.device}" if self.device else "",
            f"needs {self.needs}" if self.needs else "",
            f"refused by {self.refused_by}" if self.refused_by else "",
        )
        return ", ".join(filter(None, words))

    def __str__(self) -> str:
        return f"{self.args[0]} ({self.claim})" if self.claim else str(self.args[0])


class ChildError(RegressError):
    """Something went wrong in a target process.

    ``kind`` is the class of the failure, ``phase`` the phase it happened in (import, start, ready, request, stop, probe). ``parts``
    hold what a verdict looks at, each by itself; ``detail`` is the long text for people (remote traceback, dossier, log tail).
    """

    kind = Kind.EXCEPTION

    def __init__(self, message: str, *, phase: str, detail: str = "", parts: Parts = MappingProxyType({})) -> None:
        super().__init__(message)
        self.phase = phase
        self.detail = detail
        self.parts = parts

    def __str__(self) -> str:
        head = f"[{self.phase}] {self.args[0]}"
        return f"{head}\n{self.detail}" if self.detail else head


class RemoteError(ChildError):
    """Code in the target process raised an exception. ``type_name`` is its class as the target names it.

    ``engine_died``: it says, or the engine's processes show, that the engine is dead; its kind is then ``engine-death``.
    """

    def __init__(
        self,
        message: str,
        *,
        phase: str,
        detail: str = "",
        type_name: str = "",
        parts: Parts = MappingProxyType({}),
        engine_died: bool = False,
    ) -> None:
        super().__init__(message, phase=phase, detail=detail, parts=parts)
        self.type_name = type_name
        if engine_died:
            self.kind = Kind.ENGINE_DEATH


class DeadlineExceeded(ChildError):
    """A phase did not end by its deadline. ``detail`` holds the dossier taken before the family was killed."""

    kind = Kind.HANG


class ChildDied(ChildError):
    """A target process ended without giving the answer it owed (including exit status 0 in silence).

    ``engine_died``: it held an engine that was up; its kind is then ``engine-death``.
    """

    kind = Kind.CRASH

    def __init__(
        self,
        message: str,
        *,
        phase: str,
        detail: str = "",
        parts: Parts = MappingProxyType({}),
        engine_died: bool = False,
    ) -> None:
        super().__init__(message, phase=phase, detail=detail, parts=parts)
        if engine_died:
            self.kind = Kind.ENGINE_DEATH


class LimitExceeded(ChildError):
    """The session, or a target process and all it started, used more than it may: names the limit, its option, and what was used."""

    kind = Kind.LIMIT


class ScriptError(RegressError):
    """The simulated model could not say its script: names request, place, what was wanted and what came instead."""


class DeviceBusy(ChildError):
    """GPUs stayed with other runs or other tenants as long as they were waited for: it says nothing about vLLM, and is no hang."""

    kind = Kind.LIMIT


class ProtocolError(ChildError):
    """A target process sent something that is not a reply: truncated, oversized, or not JSON."""

    kind = Kind.CRASH
