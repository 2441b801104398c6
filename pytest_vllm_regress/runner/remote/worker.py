"""Run a request on this machine: unpack it, build its environment, run its cases in a pytest
process, and send replies as cases end."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from ...cases.results import RunResult, TestResult
from ...engines.processes.dossier import log_tail
from ...errors import BuildError, RegressError
from ...util.paths import writable_root
from ...util.rundir import scratch
from ...util.sizes import GIB, MIB
from ..batch import BatchState
from ..build import build_with_cache, check_environments
from ..pytest_run import ReportReader, end_command, run_batch, start_command
from . import packing
from .wire import MAX_LOG, BatchReply, BatchRequest, decode_request

POLL_S = 0.2
"""Seconds between two reads of pytest's report."""
GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL for a pytest that must end."""
FULL_DISK_BYTES = 16 * MIB
"""A disk with less free space counts as full: a failure there may have been caused by that."""

Send = Callable[[BatchReply], None]


def run_request_here(line: bytes, node: Mapping[str, str], send: Send) -> BatchReply:
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
            return _run(request, folder, node, send)
    except BuildError as error:
        return BatchReply(
            BatchState.LOST if _disk_is_full() else BatchState.UNBUILT, why=str(error), node=node
        )
    except (RegressError, OSError) as error:
        return BatchReply(BatchState.LOST, why=str(error), node=node)


def _run(request: BatchRequest, folder: Path, node: Mapping[str, str], send: Send) -> BatchReply:
    batch, options = packing.unpack(request, folder)
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
        _disk_is_full() and not all(result.verdict.expected for result in run.results)
    ):
        why = watched.lost or f"{writable_root()} or the temporary directory is full"
        return BatchReply(BatchState.LOST, why=why, node=node, log=log)
    unsent = dataclasses.replace(
        run, results=tuple(result for result in run.results if result not in watched.sent)
    )
    return BatchReply(run=_with_node(unsent, node), node=node, log=log)


class _WatchedPytest:
    """A pytest whose results are sent as its report grows.

    ``lost``: why it says nothing about the cases; "" if it does.
    """

    def __init__(
        self, log: Path, report: ReportReader, deadline_s: float, send: Callable[[RunResult], None]
    ) -> None:
        self._log = log
        self._report = report
        self._deadline_s = deadline_s
        self._send = send
        self.sent: list[TestResult] = []
        self.lost = ""

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run the command with its output in the log; send results as they are reported.

        Return the exit status.
        """
        with self._log.open("wb") as log:
            process = start_command(command, environment, output=log)
            progress_at = time.monotonic()
            try:
                while True:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        return self._exit_status(process.wait(POLL_S))
                    reported = self._report.read()
                    if reported.results:
                        progress_at = time.monotonic()
                        self.sent += reported.results
                        self._send(RunResult(reported.results))
                    elif time.monotonic() - progress_at > self._deadline_s:
                        self.lost = f"no case ended within {self._deadline_s:.0f} s"
                        return -signal.SIGKILL
            finally:
                end_command(process, GRACE_S)

    def _exit_status(self, status: int) -> int:
        if status == -signal.SIGKILL:  # this package never sends it to a pytest that is running
            self.lost = "pytest was killed (SIGKILL), as the kernel does when memory is full"
        return status


def _with_node(run: RunResult, node: Mapping[str, str]) -> RunResult:
    return dataclasses.replace(
        run, results=tuple(replace(result, node=dict(node)) for result in run.results)
    )


def _disk_is_full() -> bool:
    return any(
        shutil.disk_usage(path).free < FULL_DISK_BYTES
        for path in (writable_root(), tempfile.gettempdir())
    )
