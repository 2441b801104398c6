"""Signals that end a command or a process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Iterator

_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` on SIGTERM and SIGHUP, so that a cancelled CI job or a closed
    terminal stops pytest and keeps the results.

    SIGHUP stays ignored under ``nohup``. SIGINT is restored if it is ignored, as it is in a command
    that a shell started in the background: child processes inherit that, and pytest could not be
    interrupted.
    """

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    handlers = {
        number: signal.getsignal(number)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    }
    signal.signal(signal.SIGTERM, interrupt)
    if handlers[signal.SIGHUP] is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, interrupt)
    if handlers[signal.SIGINT] is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """As ``terminate_as_interrupt``, in the main thread of a process that SIGTERM would end at
    once, without cleaning up."""
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    ):
        with terminate_as_interrupt():
            yield
    else:
        yield


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Hold back SIGINT, SIGTERM and SIGHUP in the calling thread until the block has ended."""
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    )
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent, with pid ``parent``, ends (prctl
    PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before the call
        os.kill(os.getpid(), signal.SIGKILL)
