"""Runs the request that comes in one line on standard input, in processes of its own; outcomes go to standard output, one a line.

``python -m pytest_vllm_regress.runner.cell_process``. Standard input stays open as the lifeline: when it closes, whoever asked is gone.
Two processes: one works (``cell_work``), the other guards it. The guard alone cleans up, when nobody is left who could make or hold
anything: it is the subreaper of all that runs for the request. And it is nobody's child: what kills a worker's children must not take
away who cleans up behind them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from typing import NoReturn

from ..processes.leftovers import sweep
from ..target_site.vllm_regress_target.nanny import become_subreaper, end_descendants
from ..util.signals import end_with_parent
from .cell import CellOutcome, State
from .cell_work import answer
from .machine import facts

GRACE_S = 5.0
"""For the work to end after its asker is gone: a build takes away what it had half built."""
_CHUNK = 1 << 16


def main(node: str = "") -> NoReturn:
    """``node``: what this machine is called in results (default: its host name)."""
    answers = os.dup(sys.stdout.fileno())
    # Nothing that is started here can hold the answers open.
    os.dup2(os.open(os.devnull, os.O_RDWR), sys.stdout.fileno())
    line = sys.stdin.buffer.readline()
    if os.fork():
        os._exit(0)
    os.setsid()
    # Whoever started us may have blocked signals, as Ray's workers do: neither the work nor its pytest would ever end.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    become_subreaper()
    outcomes, said = os.pipe()
    guard = os.getpid()
    worker = os.fork()
    if worker == 0:
        end_with_parent(guard)
        os.close(answers)
        _work(line, node, said)
    os.close(said)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    last = _attend(outcomes, answers, worker)
    end_descendants()
    sweep()  # pytest may have been killed, and the worker not
    if last is None:
        why = "the process that ran the cells ended without an answer: something has killed it"
        last = CellOutcome(State.LOST, why=why, node={"node": node or socket.gethostname()}).to_text().encode()
    _tell(answers, last)
    os._exit(0)  # whoever asked may be gone, and with it the other end of every stream


def _work(line: bytes, node: str, said: int) -> NoReturn:
    """In the worker. Interrupted, it unwinds: what is half built goes."""
    os.dup2(sys.stdout.fileno(), sys.stdin.fileno())  # the lifeline is the guard's
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(KeyboardInterrupt):
        _tell(
            said, answer(line, facts(node), lambda outcome: _tell(said, outcome.to_text().encode())).to_text().encode()
        )
    os._exit(0)


def _attend(outcomes: int, answers: int, worker: int) -> bytes | None:
    """Pass on what the worker tells, until it has ended or whoever asked is gone: then it is told to end, and after a while no longer waited for.

    Returns its last outcome, which waits for the cleaning up: whoever has it closes our lifeline. None where there is none.
    """
    rest, last = b"", None
    lifeline = sys.stdin.fileno()
    while True:
        ready = select.select([lifeline, outcomes], [], [])[0]
        if lifeline in ready and not os.read(lifeline, _CHUNK):
            os.kill(worker, signal.SIGINT)
            _drain(outcomes, GRACE_S)
            return None
        if outcomes not in ready:
            continue
        new = os.read(outcomes, _CHUNK)
        if not new:
            return last
        *whole, rest = (rest + new).split(b"\n")
        for line in whole:
            if json.loads(line)["last"]:
                last = line
            else:
                _tell(answers, line)


def _drain(outcomes: int, seconds: float) -> None:
    """Until the worker has ended, or the time is over."""
    until = time.monotonic() + seconds
    while select.select([outcomes], [], [], max(0.0, until - time.monotonic()))[0]:
        if not os.read(outcomes, _CHUNK):
            return


def _tell(where: int, line: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        rest = memoryview(line + b"\n")
        while rest:
            rest = rest[os.write(where, rest) :]


if __name__ == "__main__":
    main(*sys.argv[1:2])
