"""Read a request, one line, from standard input, run it, and write the replies to standard output,
one per line.

``python -m pytest_vllm_regress.runner.remote.guard``. Standard input is the lifeline: when it
closes, the requester is gone and the run ends.

There are two processes. The worker runs the batch (``worker``). The guard is the subreaper of
everything that runs for the request, and cleans up when all of it has ended. It detaches itself
from its parent, because Ray kills a worker's children before the worker, and the process that
cleans up must survive that.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from typing import NoReturn

from ...engines.processes.abandoned import sweep
from ...target_site.vllm_regress_target.nanny import become_subreaper, end_descendants
from ...util.signals import end_with_parent
from .wire import BatchReply, encode_reply, is_last, machine_facts
from .worker import run_request_here

GRACE_S = 5.0
"""Seconds that the worker has to end after the requester disconnects.

A build uses them to remove a half-built environment.
"""
_CHUNK = 1 << 16


def main(node: str = "") -> NoReturn:
    """Run the request. ``node``: the name of this machine in results (default: its host name)."""
    replies = os.dup(sys.stdout.fileno())
    # Processes that are started here must not inherit the replies' end of the pipe.
    os.dup2(os.open(os.devnull, os.O_RDWR), sys.stdout.fileno())
    request = sys.stdin.buffer.readline()
    if os.fork():
        os._exit(0)
    os.setsid()
    # Ray's workers block signals, and children inherit that: neither the worker nor its pytest
    # could be ended.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    become_subreaper()
    from_worker, to_guard = os.pipe()
    guard = os.getpid()
    worker = os.fork()
    if worker == 0:
        end_with_parent(guard)
        os.close(replies)
        _work(request, node, to_guard)
    os.close(to_guard)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    last = _forward_replies(from_worker, replies, worker)
    end_descendants()
    sweep()  # removes the run directory of a pytest that was killed
    if last is None:
        last = encode_reply(BatchReply.killed(node or socket.gethostname())).encode()
    _write_line(replies, last)
    os._exit(0)  # not sys.exit: flushing streams whose other end is gone would fail


def _work(request: bytes, node: str, to_guard: int) -> NoReturn:
    """Run the request in the worker process.

    An interrupt unwinds it, so that a half-built environment is removed.
    """
    os.dup2(sys.stdout.fileno(), sys.stdin.fileno())  # only the guard holds the lifeline
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def send(reply: BatchReply) -> None:
        _write_line(to_guard, encode_reply(reply).encode())

    with contextlib.suppress(KeyboardInterrupt):
        send(run_request_here(request, machine_facts(node), send))
    os._exit(0)


def _forward_replies(from_worker: int, replies: int, worker: int) -> bytes | None:
    """Forward the worker's replies until it ends, or until the requester disconnects; then
    interrupt the worker and wait ``GRACE_S`` for it.

    Return its last reply, which is sent after the cleanup because the requester closes the lifeline
    when it has it. None without one.
    """
    incomplete, last = b"", None
    lifeline = sys.stdin.fileno()
    while True:
        ready = select.select([lifeline, from_worker], [], [])[0]
        if lifeline in ready and not os.read(lifeline, _CHUNK):
            os.kill(worker, signal.SIGINT)
            _wait_for_end(from_worker, GRACE_S)
            return None
        if from_worker not in ready:
            continue
        content = os.read(from_worker, _CHUNK)
        if not content:
            return last
        *lines, incomplete = (incomplete + content).split(b"\n")
        for line in lines:
            if is_last(line[:100].decode(errors="replace")):
                last = line
            else:
                _write_line(replies, line)


def _wait_for_end(from_worker: int, seconds: float) -> None:
    """Wait until the worker has ended and its pipe is closed, at most ``seconds``."""
    deadline = time.monotonic() + seconds
    while select.select([from_worker], [], [], max(0.0, deadline - time.monotonic()))[0]:
        if not os.read(from_worker, _CHUNK):
            return


def _write_line(descriptor: int, line: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        unwritten = memoryview(line + b"\n")
        while unwritten:
            unwritten = unwritten[os.write(descriptor, unwritten) :]


if __name__ == "__main__":
    main(*sys.argv[1:2])
