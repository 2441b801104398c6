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
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import UsageError
from ...util.masking import without_secrets
from ...util.paths import PACKAGE
from ...util.sizes import GIB

SECONDS = 5
"""Processor time for one request."""
MEMORY = 2 * GIB
_WALL_SECONDS = 60.0
"""Time for one request, including the start of the process: for a machine that does nothing."""
_END_SECONDS = 5.0
_CHUNK = 1 << 16
_START = (
    "import sys; p = sys.argv.pop(1); p and sys.path.insert(0, p); "
    "from pytest_vllm_regress.fuzz.schemas.schema_judge_process import main; main(*sys.argv[1:])"
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
        """Return the usable part of a group of the JSON Schema Test Suite, see
        ``schema_judge_process``. Raises ``NotJudged``."""
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
        until = time.monotonic() + _WALL_SECONDS
        received = bytearray()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(line)
            process.stdin.flush()
        while not received.endswith(b"\n"):
            if not select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
                raise NotJudged(
                    f"the schema cannot be judged: no answer of jsonschema within {_WALL_SECONDS:g} s"
                )
            content = os.read(process.stdout.fileno(), _CHUNK)
            if not content:
                raise NotJudged(f"the schema cannot be judged: {self._end_of(process)}")
            received += content
        return bytes(received)

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
        if process.returncode == -signal.SIGPROF:
            return f"jsonschema needs more than {self.seconds} s of processor time. Simplify its references and patterns"
        return f"the process that judges it ended with status {process.returncode}"


@functools.cache
def judge() -> SchemaJudge:
    """Return the judge of this process."""
    shared = SchemaJudge()
    atexit.register(shared.close)
    return shared
