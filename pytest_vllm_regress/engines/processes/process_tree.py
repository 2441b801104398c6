"""Processes of an engine: finding, describing and ending them.

An engine's processes are everything below its nanny, and everything whose environment carries the
run's tag, whatever their session or parent.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from ...target_site.vllm_regress_target.nanny import TAG, held, mapped_shm
from ...target_site.vllm_regress_target.spawning import PROCESS_NAME as FORK_SERVER
from ...util.deadline import Deadline
from ...util.masking import mask

_POLL_S = 0.02
_HELPER = re.compile(
    r"multiprocessing\.resource_tracker|/spawn-\d+\.py |torch/_inductor/compile_worker|/ray/|\bray::IDLE\b|raylet|gcs_server"
)


def descendants(pid: int) -> list[psutil.Process]:
    """Return the living descendants of ``pid``, nearest first."""
    return below(find(pid))


def below(process: psutil.Process | None) -> list[psutil.Process]:
    """Return the living descendants of ``process``, nearest first: none if it has ended, also if
    another process has its pid now."""
    with suppress(psutil.Error):
        if (
            process is not None and process.is_running()
        ):  # or the pid is another's: ``children`` itself does not check that in every version
            return [p for p in process.children(recursive=True) if is_alive(p)]
    return []


def find(pid: int) -> psutil.Process | None:
    """Return the process that has ``pid`` now, if there is one.

    Signals through it reach no later process with this pid.
    """
    with suppress(psutil.Error):
        return psutil.Process(pid)
    return None


def with_tag(tag: str) -> list[psutil.Process]:
    """Return this user's living processes whose environment at exec carried ``tag``."""
    return [process for process, carried in tagged() if carried == tag]


def tagged() -> Iterator[tuple[psutil.Process, str]]:
    """Yield the living processes whose environment at exec carried the tag of a run, with that
    tag."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            tag = "" if process.pid == os.getpid() else process.environ().get(TAG)
            if tag and is_alive(process):
                yield process, tag


def terminate(processes: Sequence[psutil.Process], *, grace_s: float) -> list[psutil.Process]:
    """Send TERM, after ``grace_s`` seconds KILL, and wait.

    Return those that KILL did not end: they are in an uninterruptible sleep.
    """
    if grace_s > 0:
        send_signal(processes, signal.SIGTERM)
        send_signal(processes, signal.SIGCONT)  # a stopped process cannot handle TERM
        processes = wait_until_gone(processes, grace_s)
    send_signal(processes, signal.SIGKILL)
    return wait_until_gone(processes, 2.0)


def wait_until_gone(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait up to ``seconds`` and return those that are still alive. A zombie counts as gone."""
    deadline = Deadline.after("end", seconds)
    survivors = list(processes)
    while True:
        expired = deadline.passed
        survivors = [p for p in survivors if is_alive(p)]
        if expired or not survivors:
            return survivors
        time.sleep(
            _POLL_S
        )  # the kernel has no event for the end of a process that is not our child


def shared_memory(processes: Iterable[psutil.Process], others: Container[int] = ()) -> set[str]:
    """Return the files below /dev/shm that any of the processes has mapped, except those with an
    inode in ``others``."""
    return mapped_shm([p.pid for p in processes], others)


def command_of(process: psutil.Process) -> tuple[str, str]:
    """Return the name and the command line of a process. Raises ``psutil.Error``."""
    name = process.name()
    return name, " ".join(process.cmdline()) or name


def describe(process: psutil.Process) -> str:
    """Return pid and command line, masked, for messages."""
    try:
        _, command = command_of(process)
    except psutil.Error:
        command = "?"
    return f"{process.pid} ({mask(command)[:120]})"


def is_helper(process: psutil.Process) -> bool:
    """Return whether a process is only a helper of the engine: our fork server and its launchers,
    multiprocessing's resource tracker, torch's
    compile workers, Ray's daemons and idle workers. A process that has ended counts as helper."""
    try:
        name, command = command_of(process)
    except psutil.Error:
        return True
    return name == FORK_SERVER or _HELPER.search(command) is not None


def describe_exit(process: psutil.Process) -> str:
    """Return ``killed by SIGKILL`` or ``exit status 1``. Empty once the parent has reaped the
    process: the kernel keeps the status only until
    then (proc(5), stat)."""
    with suppress(OSError, ValueError, IndexError, psutil.Error):
        if process.is_running() and process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            fields = Path(f"/proc/{process.pid}/stat").read_bytes().split()
            return describe_exit_code(os.waitstatus_to_exitcode(int(fields[-1])))
    return ""


def describe_exit_code(code: int) -> str:
    """Return an exit code in words; a negative one is a signal."""
    if code < 0:
        meaning = (
            ", usually for an instruction that this CPU lacks" if -code == signal.SIGILL else ""
        )
        with suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}{meaning}"
    return f"exit status {code}"


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return process.is_running() and process.status() not in (
            psutil.STATUS_ZOMBIE,
            psutil.STATUS_DEAD,
        )
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def send_signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to every process that still exists.

    One that gets the pid of another at this moment is not signalled.
    """
    for process in processes:
        with suppress(psutil.Error, OSError), held(process.pid) as descriptor:
            if descriptor is None:
                process.send_signal(number)
            elif process.is_running():
                signal.pidfd_send_signal(descriptor, number)
