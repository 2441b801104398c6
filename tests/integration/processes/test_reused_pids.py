"""No process is signalled because it has the pid of one that ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pytest_vllm_regress.engines.processes import process_tree
from pytest_vllm_regress.engines.processes.child_processes import ChildProcesses
from pytest_vllm_regress.target_site.vllm_regress_target import nanny
from pytest_vllm_regress.target_site.vllm_regress_target.protocol import FrameSocket

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
needs_pids = pytest.mark.skipif(
    not os.access(LAST_PID, os.W_OK),
    reason="the next pid cannot be set: run as root, without a read-only /proc/sys",
)
TICK_S = 0.02
"""Processes that start within one clock tick (10 ms) of the kernel have the same start time.

No pid comes round so fast.
"""
STRANGER = "import subprocess, sys; subprocess.Popen(['sleep', '60']); print('ready', flush=True); sys.stdin.read()"


@contextlib.contextmanager
def stranger(pid: int) -> Iterator[list[psutil.Process]]:
    """A process with this pid, which another one had, and its child."""
    time.sleep(TICK_S)
    for _ in range(200):
        LAST_PID.write_text(str(pid - 1))
        with subprocess.Popen(
            [sys.executable, "-c", STRANGER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            try:
                if process.pid == pid:
                    assert process.stdout is not None and process.stdout.readline()
                    strangers = [psutil.Process(pid), *psutil.Process(pid).children()]
                    assert len(strangers) == 2
                    yield strangers
                    return
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    pytest.skip("this machine starts too many processes to get a certain pid")


def wait_for_stop(process: psutil.Process) -> None:
    """Wait until a suspended process has noticed that, which takes a moment on a busy machine."""
    until = time.monotonic() + 60
    while process.status() != psutil.STATUS_STOPPED and time.monotonic() < until:
        time.sleep(0.01)


@needs_pids
@pytest.mark.parametrize("orphaned", [False, True])
def test_a_stranger_with_a_nannys_pid_is_not_ended(orphaned: bool) -> None:
    """The agent reaps a nanny that was killed, and then its pid is free."""
    ours, theirs = socket.socketpair()
    nannys = subprocess.Popen(["sleep", "60"])
    life = ChildProcesses(nannys.pid, FrameSocket(ours))
    nannys.kill()
    nannys.wait()
    if orphaned:
        theirs.close()
    with stranger(nannys.pid) as strangers:
        strangers[0].suspend()
        wait_for_stop(strangers[0])
        assert life.processes() == []
        life.kill(0.0)
        assert strangers[0].status() == psutil.STATUS_STOPPED and all(
            map(process_tree.is_alive, strangers)
        )
    theirs.close()


@needs_pids
def test_a_stranger_with_a_childs_pid_is_not_asked_to_end() -> None:
    ours, theirs = socket.socketpair()
    lifeline = FrameSocket(theirs)
    parent = subprocess.Popen(
        [sys.executable, "-c", STRANGER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None and parent.stdout.readline()
    life = ChildProcesses(parent.pid, FrameSocket(ours))
    (child,) = psutil.Process(parent.pid).children()
    lifeline.send({"event": "started", "pid": child.pid})
    assert life.alive and life.pid == child.pid
    child.kill()
    parent.kill()
    parent.communicate()
    process_tree.wait_until_gone([child], 60)
    until = time.monotonic() + 60
    while psutil.pid_exists(child.pid) and time.monotonic() < until:  # init reaps it
        time.sleep(0.05)
    with stranger(child.pid) as strangers:
        life.terminate()
        time.sleep(0.2)
        assert all(map(process_tree.is_alive, strangers))
    life.kill(0.0)


@needs_pids
def test_a_stranger_with_the_pid_of_a_descendant_is_not_signalled() -> None:
    """Between the look at /proc and the signal, a descendant ends and another process gets its pid."""
    program = (
        "import os, subprocess, sys; from vllm_regress_target import nanny; child = subprocess.Popen(['sleep', '60']); "
        "seen = nanny.start_times(os.getpid()); child.kill(); child.wait(); print(child.pid, flush=True); "
        "sys.stdin.readline(); nanny._signal(seen, 9)"
    )
    command, site = [sys.executable, "-c", program], str(Path(nanny.__file__).parents[1])
    with subprocess.Popen(
        command, env={"PYTHONPATH": site}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as looking:
        assert looking.stdout is not None
        pid = int(looking.stdout.readline())
        with stranger(pid) as strangers:
            looking.communicate("go\n")
            assert looking.returncode == 0
            time.sleep(0.2)
            assert all(map(process_tree.is_alive, strangers))


@needs_pids
def test_a_stranger_that_gets_the_pid_after_the_last_look_is_not_signalled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process ends and its pid is given away between the look and the signal."""
    victim = subprocess.Popen(["sleep", "60"])
    process = psutil.Process(victim.pid)
    is_running = psutil.Process.is_running
    strangers: list[psutil.Process] = []
    with contextlib.ExitStack() as stack:

        def look(looked_at: psutil.Process) -> bool:
            running = is_running(looked_at)
            if looked_at is process and victim.poll() is None:
                victim.kill()
                victim.wait()
                strangers.extend(stack.enter_context(stranger(process.pid)))
            return running

        monkeypatch.setattr(psutil.Process, "is_running", look)
        process_tree.send_signal([process], signal.SIGKILL)
        monkeypatch.undo()
        time.sleep(0.2)
        assert strangers and all(map(process_tree.is_alive, strangers))


def test_a_process_is_signalled() -> None:
    started = subprocess.Popen(["sleep", "60"])
    process_tree.send_signal([psutil.Process(started.pid)], signal.SIGKILL)
    assert started.wait() == -signal.SIGKILL
