"""Judge schemas and texts with jsonschema in a limited process.

Schemas of findings and of a corpus are not trusted: a chain of doubled ``$ref`` or a pattern that
backtracks takes jsonschema years, and neither can be interrupted. The process runs this package in
our interpreter (a target has no jsonschema) and is replaced when it exceeds a limit.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import math
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from jsonschema.exceptions import best_match
from jsonschema.protocols import Validator

from ...errors import UsageError
from ...schemas import features, validator
from ...util.masking import without_secrets
from ...util.paths import PACKAGE
from ...util.sizes import GIB

SECONDS = 5
"""Processor time for one request."""
MEMORY = 2 * GIB
_WALL_SECONDS = 60.0
"""Time for one request, including the start of the process: for a machine that does nothing."""
_END_SECONDS = 5.0
NOT_JSON = "not JSON"
_MAX_DIGITS = 4000
_MAX_MESSAGE = 2000
_MAX_TEXTS = 10
_NOT_SUPPORTED = ("://", '"$id"', '"id"', '"$dynamicRef"', '"$anchor"')
_START = (
    "import sys; p = sys.argv.pop(1); p and sys.path.insert(0, p); "
    "from pytest_vllm_regress.fuzz.schemas.schema_judge import main; main(*sys.argv[1:])"
)

Violation = tuple[str, str]
"""The violated keyword and a message."""


class NotJudged(UsageError):
    """jsonschema cannot judge a schema within the limits. Says nothing about the backend."""


class SchemaJudge:
    """Sends requests to the process, one at a time. It is started on the first request."""

    def __init__(self, seconds: int = SECONDS, memory: int = MEMORY) -> None:
        self.seconds, self.memory = seconds, memory
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def violations(self, schema: Mapping[str, Any], texts: Sequence[str]) -> list[Violation | None]:
        """Return the violation of each text, None for one that satisfies the schema.

        Raises ``NotJudged``.
        """
        if not texts:
            return []
        replies = self._request("violations", schema=schema, texts=list(texts))
        return [
            None if violation is None else (violation[0], violation[1]) for violation in replies
        ]

    def usable(self, schema: Any, tests: Any) -> dict[str, Any] | None:
        """Return the usable part of a group of the JSON Schema Test Suite, see ``_usable``. Raises ``NotJudged``."""
        usable: dict[str, Any] | None = self._request("usable", schema=schema, tests=tests)
        return usable

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)

    def _request(self, method: str, **arguments: Any) -> Any:
        try:
            line = json.dumps({"method": method, **arguments}).encode() + b"\n"
        except (RecursionError, ValueError) as error:
            raise NotJudged(f"the schema cannot be judged: {error}") from None
        with self._lock:
            try:
                reply = json.loads(self._exchange(line))
            except (
                BaseException
            ):  # also an interrupt: the reply to this request must not answer the next one
                self.close()
                raise
        if "error" in reply:
            raise NotJudged(f"the schema cannot be judged: {reply['error']}")
        return reply["result"]

    def _exchange(self, line: bytes) -> bytes:
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        guard = threading.Timer(_WALL_SECONDS, process.kill)
        guard.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(line)
                process.stdin.flush()
            received = process.stdout.readline()
        finally:
            guard.cancel()
        if not received.endswith(b"\n"):
            raise NotJudged(f"the schema cannot be judged: {self._end_of(process)}")
        return received

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            package = PACKAGE.resolve().parent
            installed = package.name in ("site-packages", "dist-packages")
            command = [sys.executable, "-P", "-c", _START, "" if installed else str(package)]
            self._process = subprocess.Popen(
                [*command, str(self.seconds), str(self.memory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=without_secrets(os.environ),
            )
        return self._process

    def _end_of(self, process: subprocess.Popen[bytes]) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
        if process.returncode == -signal.SIGKILL:
            return f"no answer of jsonschema within {_WALL_SECONDS:g} s"
        if process.returncode == -signal.SIGPROF:
            return f"jsonschema needs more than {self.seconds} s of processor time. Simplify its references and patterns"
        return f"the process that judges it ended with status {process.returncode}"


@functools.cache
def judge() -> SchemaJudge:
    """Return the judge of this process."""
    shared = SchemaJudge()
    atexit.register(shared.close)
    return shared


# What runs in the process. Each request and each reply is a line of JSON.


def main(seconds: str, memory: str) -> None:
    """Answer requests until standard input ends.

    The kernel ends the process with SIGPROF after its processor time for one request, even when
    nobody waits for it any more.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the requester decides
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    for line in requests:
        signal.setitimer(signal.ITIMER_PROF, float(seconds))
        replies.write(json.dumps(_reply(line)).encode() + b"\n")
        replies.flush()
        signal.setitimer(signal.ITIMER_PROF, 0)


def _reply(line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
        return {"result": _METHODS[request.pop("method")](**request)}
    except MemoryError:
        return {"error": "jsonschema needs too much memory"}
    except (
        Exception
    ) as error:  # of jsonschema, referencing, re and our own walk over what may be no schema
        return {"error": f"{type(error).__name__}: {error}"[:_MAX_MESSAGE]}


def find_violation(checker: Validator, text: str) -> tuple[str, str] | None:
    """Return the keyword that a text violates and a message, or None if the text satisfies the
    schema."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_number)
    except json.JSONDecodeError as error:
        return f"{NOT_JSON}: {error.msg.removesuffix(' at')}", str(error)
    except ValueError as error:
        return NOT_JSON, str(error)
    worst = best_match(checker.iter_errors(value))
    return None if worst is None else (str(worst.validator), str(worst.message))


def _number(text: str) -> int | float:
    """Parse a number with a fraction or an exponent.

    JSON numbers may exceed the range of floats: 1e400 is an integer.
    """
    try:
        exact = Decimal(text)
    except InvalidOperation:  # an exponent that exceeds even the range of decimals
        return float(text)
    whole = exact.adjusted() < _MAX_DIGITS and exact == exact.to_integral_value()
    return int(exact) if whole and math.isinf(float(text)) else float(text)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _violations(schema: dict[str, Any], texts: list[str]) -> list[tuple[str, str] | None]:
    checker = validator(schema)
    violations = (find_violation(checker, text) for text in texts)
    return [violation and (violation[0], violation[1][:_MAX_MESSAGE]) for violation in violations]


def _usable(schema: Any, tests: Any) -> dict[str, Any] | None:
    """Return schema, valid and invalid texts and features of a group of the JSON Schema Test Suite;
    None if no backend accepts the schema."""
    try:
        text = json.dumps(schema)
        if not isinstance(schema, dict) or any(word in text for word in _NOT_SUPPORTED):
            return None
        bare = {key: value for key, value in schema.items() if key != "$schema"}
        checker = validator(bare)
        checker.check_schema(bare)
        # Keep tests on which jsonschema agrees with the suite; others were written for a different
        # draft.
        agreed = [test for test in tests if checker.is_valid(test["data"]) == test["valid"]]
        valid, invalid = (
            tuple(
                dict.fromkeys(
                    json.dumps(test["data"], ensure_ascii=False)
                    for test in agreed
                    if test["valid"] is is_valid
                )
            )
            for is_valid in (True, False)
        )
        if not valid and not invalid:
            return None
        return {
            "schema": bare,
            "valid": valid[:_MAX_TEXTS],
            "invalid": invalid[:_MAX_TEXTS],
            "features": sorted(features(bare)),
        }
    except MemoryError:
        raise
    except (
        Exception
    ):  # the "referencing" library has its own exceptions for references that it cannot resolve
        return None


_METHODS: dict[str, Callable[..., Any]] = {"violations": _violations, "usable": _usable}
