"""The errors that this package raises on purpose, one tree below ``RegressError``.

Every message says what happened, where the value came from, what is allowed, and what to do next.

    RegressError
        UsageError                  a wrong value, option or file (exit code 2)
            CaseFileError           case.toml
            EnvironmentFileError    environments.toml
        BuildError                  an environment could not be built (exit code 3)
        Unsupported                 this vLLM or device lacks what a test needs (NOT_APPLICABLE)
        NotAtWork                   the positive control of a test failed (INCONCLUSIVE)
        ScriptError                 the simulated model could not follow its script (INCONCLUSIVE)
        HeldRequests                an engine keeps requests that have ended (INCONCLUSIVE)
        ChildError                  a failure in a target process; carries the parts that a verdict
        looks at
            RemoteError             an exception in the target
            DeadlineExceeded        a hang
            ChildDied               a process that ended without a reply
            LimitExceeded           too much memory or time, too many processes or engines
            (INCONCLUSIVE)
            DeviceBusy              no GPU became free in time
            PortTaken               another program listens at a server's address
            ProtocolError           a reply that cannot be read
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, NewType, TypedDict, Unpack


class Kind(enum.StrEnum):
    """Outcome of one test run. The first five are failures that a case may document."""

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
    """The texts that describe a failure.

    The symptom of a case names those in which its pattern must match.
    """

    EXCEPTION = "exception"
    """The exception chain as ``Class: message`` lines, root cause first."""
    TRACEBACK = "traceback"
    """The traceback of the target process."""
    ASSERTION = "assertion"
    """The message of the failed assertion."""
    ANSWER = "answer"
    """Status and body of the HTTP response, or the server's health where there was none."""
    LOG = "log"
    """Log lines of the engine's processes since the test took the engine, or since the probe was
    called."""
    STACKS = "stacks"
    """Stack and wait channel of each process of the engine."""
    EXIT = "exit"
    """How a process ended (status, signal or limit), and which processes of the engine are gone."""


Masked = NewType("Masked", str)
"""Text without secrets, from ``util/masking``.

Call ``Masked(...)`` only for text composed of masked text and the harness's own words.
"""
Parts = Mapping[Part, Masked]


FIRST_ERROR = "the first error in its log: "
"""Stands in the message of a ``ChildError`` before the first error that the log of its processes
has."""


class RegressError(Exception):
    """Base class of all errors that this package raises on purpose."""


class UsageError(RegressError):
    """The request cannot be fulfilled: an unknown name, an invalid value, a device that this
    machine does not have."""


class DiskFull(UsageError):
    """A file cannot be written: the disk is full, or a quota or the limit of a file's size is
    reached."""


class CaseFileError(UsageError):
    """A case file is malformed. The message names file, key, value, and the allowed values."""


class EnvironmentFileError(UsageError):
    """environments.toml is malformed, or an environment is unknown."""


class BuildFailure(enum.Enum):
    """Why an environment could not be built, as far as the output of uv tells."""

    DISK_FULL = "the disk is full"
    NOT_WRITABLE = "a folder cannot be written"
    INDEX_UNREACHABLE = "the package index cannot be reached"
    OUT_OF_MEMORY = "uv, or a build that it ran, needs more memory than it may use"
    NO_UV = "uv cannot be executed"
    NO_PYTHON = "there is no such Python"
    UNRESOLVABLE = "the requirements cannot be resolved"
    WRONG_HASH = "a file's hash is not the lock's"
    OTHER = "uv ended with an error"


class BuildError(RegressError):
    """A target environment could not be built.

    The message names the requirement that failed; no partial environment remains. ``failure``: what
    uv failed at; None if it was not uv that failed.
    """

    def __init__(self, message: str, failure: BuildFailure | None = None) -> None:
        super().__init__(message)
        self.failure = failure


class NotAtWork(RegressError):
    """The positive control of a test failed: the feature under test was not active, so neither a
    pass nor a failure proves anything."""


class Cause(enum.StrEnum):
    """Why a test does not apply to an installation, the least conclusive first.

    Only ``RELEASE`` says something about the release.
    """

    FAILURE = "failure"
    """Another failure is in the way."""
    PACKAGE = "package"
    """A package is missing."""
    HARNESS = "harness"
    """The harness or its device cannot run the test, or did not."""
    RELEASE = "release"
    """The release does not have the feature."""

    @property
    def words(self) -> str:
        """The cause, as something that a release does."""
        return {
            Cause.RELEASE: "does not have the feature",
            Cause.HARNESS: "cannot be run by the harness",
            Cause.PACKAGE: "lacks a package",
            Cause.FAILURE: "has another failure in the way",
        }[self]


class Unsupported(RegressError):
    """The installed vLLM or the device lacks what a spec asks for.

    The verdict is NOT_APPLICABLE if at least one of these reasons is given, else the error is a
    failure:

    ``since``, ``until``: the first or last vLLM version that supports it (``0.9.2``).
    ``lacks``: what was looked up in the installed vLLM and is not there: an argument, a module.
    ``refused_by``: the installed version that rejects it with an error message of its own.
    ``needs``: the package that must be installed.
    ``device``: the device that does not support it.
    """

    def __init__(
        self,
        message: str,
        *,
        since: str = "",
        until: str = "",
        lacks: str = "",
        refused_by: str = "",
        needs: str = "",
        device: str = "",
    ) -> None:
        super().__init__(message)
        reasons = {
            "since vLLM": since,
            "until vLLM": until,
            "there is no": lacks,
            "refused by": refused_by,
            "needs": needs,
            "not on device": device,
        }
        self.cause = Cause.HARNESS if device else Cause.PACKAGE if needs else Cause.RELEASE
        self.claim = ", ".join(f"{words} {reason}" for words, reason in reasons.items() if reason)
        """The reasons in words; empty if none was given."""

    def __str__(self) -> str:
        return f"{self.args[0]} ({self.claim})" if self.claim else str(self.args[0])


class _Details(TypedDict, total=False):
    detail: str
    parts: Parts
    engine_died: bool


class ChildError(RegressError):
    """A failure in a target process.

    ``kind``: the class of the failure.
    ``phase``: when it happened: import, start, ready, request, stop or probe.
    ``parts``: the texts that the verdict is based on.
    ``detail``: the long text for people: remote traceback, dossier, log tail.
    ``engine_died``: the exception or the engine's processes show that the engine is dead, or the
    process held a running engine; ``kind`` is then ``engine-death``.
    """

    kind = Kind.EXCEPTION

    def __init__(
        self,
        message: str,
        *,
        phase: str,
        detail: str = "",
        parts: Parts = MappingProxyType({}),
        engine_died: bool = False,
    ) -> None:
        super().__init__(message)
        self.phase = phase
        self.detail = detail
        self.parts = parts
        if engine_died:
            self.kind = Kind.ENGINE_DEATH

    def __str__(self) -> str:
        head = f"[{self.phase}] {self.args[0]}"
        return f"{head}\n{self.detail}" if self.detail else head


class RemoteError(ChildError):
    """Code in the target process raised an exception. ``type_name`` is the qualified name of its
    class."""

    def __init__(
        self, message: str, *, phase: str, type_name: str = "", **details: Unpack[_Details]
    ) -> None:
        super().__init__(message, phase=phase, **details)
        self.type_name = type_name


class DeadlineExceeded(ChildError):
    """A phase exceeded its deadline.

    ``detail`` holds the dossier that was taken before the processes were killed.
    """

    kind = Kind.HANG


class ChildDied(ChildError):
    """A target process ended without a reply, even if its exit status was 0."""

    kind = Kind.CRASH


class LimitExceeded(ChildError):
    """The session, or a target process with its descendants, exceeded a limit. The message names
    the limit, its option, and the usage.

    ``limit``: memory, processes or session if the processes were killed for it; empty if something
    was not started, such as one more engine. A log that grows too long is shortened and raises
    nothing.
    """

    kind = Kind.LIMIT

    def __init__(
        self, message: str, *, phase: str, limit: str = "", **details: Unpack[_Details]
    ) -> None:
        super().__init__(message, phase=phase, **details)
        self.limit = limit


class ScriptError(RegressError):
    """The simulated model could not follow its script. The message names the request, the position,
    and the expected and actual tokens.

    No symptom names its phase ("test"), so it makes the verdict of a case INCONCLUSIVE.
    """


class Violation(NamedTuple):
    """Something in an engine that is left of a request that has ended.

    ``container``: its name in vLLM (``scheduler.requests``), with the id of the ``request``; or what
    there is less of than at the start (``free blocks``), and how much is ``lacking``.
    """

    container: str
    request: str = ""
    lacking: float = 0


class HeldRequests(RegressError):
    """After a test, an engine still holds requests that have ended. The message names each
    container, how much it holds, and the requests.

    No symptom names its phase ("test"), so it makes the verdict of a case INCONCLUSIVE.
    """

    def __init__(self, violations: Sequence[Violation]) -> None:
        self.violations = tuple(violations)
        words = "; ".join(map(self._describe, self.containers))
        super().__init__(f"the engine still holds requests that have ended: {words}")

    @property
    def containers(self) -> tuple[str, ...]:
        """The names of the containers."""
        return tuple(dict.fromkeys(violation.container for violation in self.violations))

    def _describe(self, container: str) -> str:
        here = [one for one in self.violations if one.container == container]
        if lacking := max((one.lacking for one in here), key=abs):
            return f"{container}: {abs(lacking):g} {'fewer' if lacking > 0 else 'more'} than at the start"
        names = ", ".join(one.request for one in here[:5])
        return f"{container}: {len(here)} ({names}{', ...' if here[5:] else ''})"


class DeviceBusy(ChildError):
    """No GPU became free in time because other runs or tenants held them.

    This is neither a hang nor a fault of vLLM.
    """

    kind = Kind.LIMIT


class PortTaken(ChildError):
    """Another program listens at the address of a server. The message names it.

    This is no fault of vLLM, and nothing was sent there.
    """

    kind = Kind.LIMIT


class ProtocolError(ChildError):
    """A target process sent an invalid reply: truncated, oversized, or not JSON."""

    kind = Kind.CRASH
