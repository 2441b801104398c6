"""Run a request on this machine: start a guard, pass on the replies, and keep the guard's lifeline."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping

from ...util.paths import PACKAGE
from .wire import BatchReply, encode_reply, is_last

POLL_S = 0.5
"""Seconds between two calls of ``keep_running``."""
_START = "import sys; p = sys.argv.pop(1); p and sys.path.insert(0, p); from pytest_vllm_regress.runner.remote.guard import main; main(*sys.argv[1:])"
_CHUNK = 1 << 16


def run_request(
    request: str, environment: Mapping[str, str], node: str, keep_running: Callable[[], bool]
) -> Iterator[str]:
    """Yield the encoded replies to an encoded request; the last one is marked so.

    When ``keep_running`` returns False or this process ends, everything that runs for the request
    ends too.
    """
    package = PACKAGE.resolve().parent
    installed = package.name in ("site-packages", "dist-packages")
    command = [sys.executable, "-P", "-c", _START, "" if installed else str(package), node]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=dict(environment),
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(request.encode() + b"\n")
            process.stdin.flush()
            yield from _replies(process.stdout.fileno(), node, keep_running)
        finally:
            process.stdin.close()


def _replies(stdout: int, node: str, keep_running: Callable[[], bool]) -> Iterator[str]:
    incomplete = b""
    while keep_running():
        if not select.select([stdout], [], [], POLL_S)[0]:
            continue
        content = os.read(stdout, _CHUNK)
        if not content:
            yield encode_reply(BatchReply.killed(node))
            return
        *lines, incomplete = (incomplete + content).split(b"\n")
        for line in lines:
            reply = line.decode()
            yield reply
            if is_last(reply):
                return
