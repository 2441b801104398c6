"""Run a batch in another process, on this or another machine.

``run_request`` starts a guard (``main``). It reads a request, one line, from standard input, runs
it, and writes the replies to standard output, one per line. Standard input is the lifeline: when it
closes, the requester is gone and the run ends. Each request and each reply is encoded and decoded
once; the processes in between forward the line.

The guard is one of two processes. The worker runs the batch: it unpacks it, builds its environment, runs its
cases in a pytest process, and sends replies as cases end. The guard is the subreaper of
everything that runs for the request, and cleans up when all of it has ended. It detaches itself
from its parent, because Ray kills a worker's children before the worker, and the process that
cleans up must survive that.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from ..cases.results import RunResult, TestResult
from ..engines.processes.abandoned import remove_abandoned
from ..engines.processes.logs import log_tail
from ..errors import BuildError, BuildFailure, RegressError
from ..target_site.vllm_regress_target.nanny import become_subreaper, end_descendants
from ..util import codec
from ..util.paths import writable_root
from ..util.rundir import scratch
from ..util.signals import end_with_parent
from ..util.sizes import GIB
from .batch import BatchState
from .executors import build_with_cache, check_environments, disk_is_full
from .pytest_run import ReportReader, end_command, package_command, run_batch, start_command
from .wire import (
    MAX_LOG,
    BatchReply,
    BatchRequest,
    decode_request,
    encode_reply,
    head_of,
    machine_facts,
    unpack,
)

GRACE_S = 5.0
"""Seconds that the worker has to end after the requester disconnects.

A build uses them to remove a half-built environment.
"""
POLL_S = 0.2
"""Seconds between two reads of pytest's report."""
PYTEST_GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL for a pytest that must end."""
_CHUNK = 1 << 16

Send = Callable[[BatchReply], None]


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
    remove_abandoned()  # removes the run directory of a pytest that was killed
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
        send(_run_here(request, machine_facts(node), send))
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
            if head_of(line).last:
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


def _run_here(line: bytes, node: Mapping[str, str], send: Send) -> BatchReply:
    """Run the encoded request; send a reply whenever cases have ended. Return the last one, when
    everything is cleaned up.

    Changes the working directory while it runs. ``node``: facts of this machine.
    """
    try:
        request = decode_request(line)
        if (free := shutil.disk_usage(writable_root()).free) < request.needs.disk_bytes:
            needed = f"{request.needs.disk_bytes / GIB:.1f} GiB are needed"
            return BatchReply(
                BatchState.LOST,
                why=f"{writable_root()} has {free / GIB:.1f} GiB free, but {needed}",
                node=node,
            )
        with scratch() as folder, contextlib.chdir(folder):
            return _run_unpacked(request, folder, node, send)
    except BuildError as error:
        full = error.failure is BuildFailure.DISK_FULL or disk_is_full()
        return BatchReply(
            BatchState.LOST if full else BatchState.UNBUILT, why=str(error), node=node
        )
    except (RegressError, OSError) as error:
        return BatchReply(BatchState.LOST, why=str(error), node=node)


def _run_unpacked(
    request: BatchRequest, folder: Path, node: Mapping[str, str], send: Send
) -> BatchReply:
    batch, options = unpack(request, folder)
    check_environments([batch])
    build_with_cache(lambda line: None)(batch.environment)
    if not batch.cases:
        return BatchReply(node=node)
    report = ReportReader(folder / "report.jsonl")

    def send_results(run: RunResult) -> None:
        send(BatchReply(run=_with_node(run, node), last=False, node=node))

    watched = _WatchedPytest(folder / "log", report, request.deadline_s, send_results)
    run = run_batch(batch, options, watched.start, report, folder / "log")
    log = log_tail(folder / "log", MAX_LOG)
    if watched.lost or (
        disk_is_full() and not all(result.verdict.expected for result in run.results)
    ):
        why = watched.lost or f"{writable_root()} or the temporary directory is full"
        return BatchReply(BatchState.LOST, why=why, node=node, log=log)
    unsent = replace(
        run, results=tuple(result for result in run.results if result not in watched.sent)
    )
    return BatchReply(run=_with_node(unsent, node), node=node, log=log)


@dataclass
class _WatchedPytest:
    """A pytest whose results are sent as its report grows.

    ``lost``: why it says nothing about the cases; "" if it does.
    """

    log: Path
    report: ReportReader
    deadline_s: float
    send: Callable[[RunResult], None]

    def __post_init__(self) -> None:
        self.sent: list[TestResult] = []
        self.lost = ""

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run the command with its output in the log; send results as they are reported.

        Return the exit status.
        """
        with self.log.open("wb") as log:
            process = start_command(command, environment, output=log)
            progress_at = time.monotonic()
            try:
                while True:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        return self._exit_status(process.wait(POLL_S))
                    reported = self.report.read()
                    if reported.results:
                        progress_at = time.monotonic()
                        self.sent += reported.results
                        self.send(RunResult(reported.results))
                    elif time.monotonic() - progress_at > self.deadline_s:
                        self.lost = f"no case ended within {self.deadline_s:.0f} s"
                        return -signal.SIGKILL
            finally:
                end_command(process, PYTEST_GRACE_S)

    def _exit_status(self, status: int) -> int:
        if status == -signal.SIGKILL:  # this package never sends it to a pytest that is running
            self.lost = "pytest was killed (SIGKILL), as the kernel does when memory is full"
        return status


def _with_node(run: RunResult, node: Mapping[str, str]) -> RunResult:
    return replace(
        run, results=tuple(codec.replace(result, node=dict(node)) for result in run.results)
    )


REQUESTER_POLL_S = 0.5
"""Seconds between two calls of ``keep_running``."""
_START = "from pytest_vllm_regress.runner.guard import main; main(sys.argv[1])"


def run_request(
    request: str, environment: Mapping[str, str], node: str, keep_running: Callable[[], bool]
) -> Iterator[str]:
    """Yield the encoded replies to an encoded request; the last one is marked so.

    When ``keep_running`` returns False or this process ends, everything that runs for the request
    ends too.
    """
    with subprocess.Popen(
        [*package_command(_START), node],
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
        if not select.select([stdout], [], [], REQUESTER_POLL_S)[0]:
            continue
        content = os.read(stdout, _CHUNK)
        if not content:
            yield encode_reply(BatchReply.killed(node))
            return
        *lines, incomplete = (incomplete + content).split(b"\n")
        for line in lines:
            reply = line.decode()
            yield reply
            if head_of(line).last:
                return
