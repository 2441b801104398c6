"""Every error the package raises on purpose. One base class; a message says what happened, where, what is allowed and what to do next."""

from __future__ import annotations


class RegressError(Exception):
    """Base of all errors raised on purpose."""


class UsageError(RegressError):
    """The user asked for something that cannot be: an unknown name, a wrong value, a device that is not there."""


class CaseFileError(UsageError):
    """A case file is malformed: names file, key, value and what is allowed."""


class EnvironmentFileError(UsageError):
    """environments.toml is malformed or names an unknown environment."""


class BuildError(RegressError):
    """A target environment could not be built; names the requirement that failed. Nothing half-built is left."""


class Unsupported(RegressError):
    """The installed version, or the device, does not have what a spec asks for. Becomes NOT_APPLICABLE."""


class ChildError(RegressError):
    """Something went wrong in a target process.

    ``kind`` is the symptom class (exception, hang, crash, limit), ``phase`` the phase it happened in (import, start, ready,
    request, stop, probe), ``detail`` the long text symptoms are searched in (remote traceback, dossier, log tail).
    """

    kind = "exception"

    def __init__(self, message: str, *, phase: str, detail: str = "") -> None:
        super().__init__(message)
        self.phase = phase
        self.detail = detail

    def __str__(self) -> str:
        head = f"[{self.phase}] {self.args[0]}"
        return f"{head}\n{self.detail}" if self.detail else head


class RemoteError(ChildError):
    """Code in the target process raised an exception. ``type_name`` is its class as the target names it."""

    def __init__(self, message: str, *, phase: str, detail: str = "", type_name: str = "") -> None:
        super().__init__(message, phase=phase, detail=detail)
        self.type_name = type_name


class DeadlineExceeded(ChildError):
    """A phase did not end by its deadline. ``detail`` holds the dossier taken before the family was killed."""

    kind = "hang"


class ChildDied(ChildError):
    """A target process ended without giving the answer it owed (including exit status 0 in silence)."""

    kind = "crash"


class LimitExceeded(ChildError):
    """The session, or a target process and all it started, used more than it may: names the limit, its option, and what was used."""

    kind = "limit"


class ScriptError(RegressError):
    """The simulated model could not say its script: names request, place, what was wanted and what came instead."""


class DeviceBusy(ChildError):
    """GPUs stayed with other runs or other tenants as long as they were waited for: it says nothing about vLLM, and is no hang."""

    kind = "limit"


class ProtocolError(ChildError):
    """A target process sent something that is not a reply: truncated, oversized, or not JSON."""

    kind = "crash"
