"""The cause of a failure, from what the server logged: the first exception and the innermost
function of vLLM."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...answers.explain.tracebacks import LoggedFailure, read_failures

_VARIABLE = re.compile(r"'[^']*'|\"[^\"]*\"|0x[0-9a-f]+|\d+|\{.*\}|\[.*\]", re.S)
_FOLLOWING = (
    "EngineGenerateError",
    "EngineDeadError",
    "CancelledError",
    "ExceptionGroup",
    "RuntimeError: Engine process failed",
)


def cause(log: str) -> tuple[str, str]:
    """Return a name of the cause and its message; both empty if the log has no traceback of vLLM."""
    failure = _first(read_failures(log))
    if failure is None:
        return "", ""
    frame = failure.vllm_frames()[-1]
    return f"{failure.name} in {frame.of_vllm}:{frame.function}", failure.message[:500]


def _first(failures: Iterable[LoggedFailure]) -> LoggedFailure | None:
    """Return the first failure that no other one caused.

    An engine's own failure counts before that of a request that waits for it.
    """
    own = [failure for failure in failures if failure.vllm_frames()]
    roots = [
        failure
        for failure in own
        if not failure.follows and not failure.name.startswith(_FOLLOWING)
    ]
    return next(iter(roots or own), None)


def traceback_of(log: str) -> str:
    """Return the exception that is the cause, with vLLM's own calls, and without the folders of
    this machine; empty if there is none."""
    failure = _first(read_failures(log))
    if failure is None:
        return ""
    calls = [f"{frame.of_vllm}:{frame.line} {frame.function}" for frame in failure.vllm_frames()]
    return "\n".join([*calls[-20:], f"{failure.exception}: {failure.message[:1000]}"])


def shape(message: str) -> str:
    """Return a message without what differs between requests."""
    return " ".join(_VARIABLE.sub("N", message.splitlines()[0] if message else "").split())[:80]
