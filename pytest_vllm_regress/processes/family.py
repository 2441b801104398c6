"""Who belongs to an engine: everything below its nanny, and everything that carries the run's tag, whatever session or parent it has."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Container, Iterable, Sequence
from pathlib import Path

import psutil

from ..target_site.vllm_regress_target.nanny import TAG, mapped_shm
from ..target_site.vllm_regress_target.spawning import NAME as FORK_SERVER
from ..util.masking import mask

_POLL_S = 0.02
_HELPER = re.compile(
    r"multiprocessing\.resource_tracker|torch/_inductor/compile_worker|/ray/|\bray::IDLE\b|raylet|gcs_server"
)


def below(pid: int) -> list[psutil.Process]:
    """Living descendants of ``pid``, nearest first."""
    with contextlib.suppress(psutil.Error):
        return [p for p in psutil.Process(pid).children(recursive=True) if lives(p)]
    return []


def tagged(tag: str) -> list[psutil.Process]:
    """Living processes of this user whose environment at exec carried ``tag``."""
    needle = f"{TAG}={tag}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            variables = Path("/proc", entry, "environ").read_bytes().split(b"\0")
            if needle in variables:
                process = psutil.Process(int(entry))
                if lives(process):
                    found.append(process)
        except (OSError, psutil.Error):
            continue
    return found


def end(processes: Sequence[psutil.Process], *, grace_s: float) -> list[psutil.Process]:
    """TERM, ``grace_s`` seconds, KILL, and wait until they are gone. Returns those that even KILL did not end (uninterruptible)."""
    if grace_s > 0:
        send(processes, signal.SIGTERM)
        send(processes, signal.SIGCONT)  # a stopped process cannot handle TERM
        processes = wait_gone(processes, grace_s)
    send(processes, signal.SIGKILL)
    return wait_gone(processes, 2.0)


def wait_gone(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait up to ``seconds``; returns those that still live. A zombie counts as gone."""
    left = [p for p in processes if lives(p)]
    until = time.monotonic() + seconds
    while left and time.monotonic() < until:
        time.sleep(_POLL_S)  # no event exists for the end of a process that is not our child
        left = [p for p in left if lives(p)]
    return left


def shared_memory(processes: Iterable[psutil.Process], others: Container[int] = ()) -> set[str]:
    """Files below /dev/shm that any of the processes has mapped; none of ``others``, which are inodes."""
    return mapped_shm([p.pid for p in processes], others)


def describe(process: psutil.Process) -> str:
    """pid and command line, for messages."""
    try:
        command = " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        command = "?"
    return f"{process.pid} ({mask(command)[:120]})"


def is_helper(process: psutil.Process) -> bool:
    """It is no part of the engine: our fork server, multiprocessing's resource tracker, torch's compilers, Ray's daemons and idle workers; or it
    has ended."""
    try:
        name = process.name()
        command = " ".join(process.cmdline()) or name
    except psutil.Error:
        return True
    return name == FORK_SERVER or _HELPER.search(command) is not None


def how_it_ended(process: psutil.Process) -> str:
    """``killed by SIGKILL`` or ``exit status 1``; empty when nobody knows any more: the kernel tells until the parent has asked (proc(5), stat)."""
    with contextlib.suppress(OSError, ValueError, IndexError, psutil.Error):
        if process.is_running() and process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            fields = Path(f"/proc/{process.pid}/stat").read_bytes().split()
            return ending(os.waitstatus_to_exitcode(int(fields[-1])))
    return ""


def ending(code: int) -> str:
    """The end that an exit code tells, in words; a signal is negative."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"exit status {code}"


def lives(process: psutil.Process) -> bool:
    """It runs, and is no zombie."""
    try:
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to each that is still there."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
