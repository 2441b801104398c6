"""Asking a ``cell_process`` of this machine: the request goes in, outcomes come out, and its life hangs on ours."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping

from ..util.paths import PACKAGE
from .cell import CellOutcome, State

LOOK_S = 0.5
_START = "import sys; p = sys.argv.pop(1); p and sys.path.insert(0, p); from pytest_vllm_regress.runner.cell_process import main; main(*sys.argv[1:])"
_CHUNK = 1 << 16


def outcomes(request: str, environment: Mapping[str, str], node: str, go_on: Callable[[], bool]) -> Iterator[str]:
    """The outcomes of ``request``, the last one marked so.

    ``go_on`` is asked again and again; when it says no, or this process ends, so do the cells.
    """
    package = PACKAGE.resolve().parent
    installed = package.name in ("site-packages", "dist-packages")
    command = [sys.executable, "-P", "-c", _START, "" if installed else str(package), node]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=dict(environment)
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(request.encode() + b"\n")
            process.stdin.flush()
            yield from _lines(process.stdout.fileno(), node, go_on)
        finally:
            process.stdin.close()


def _lines(answers: int, node: str, go_on: Callable[[], bool]) -> Iterator[str]:
    rest = b""
    while go_on():
        if not select.select([answers], [], [], LOOK_S)[0]:
            continue
        new = os.read(answers, _CHUNK)
        if not new:
            why = "the process that ran the cells ended without an answer: something has killed it"
            yield CellOutcome(State.LOST, why=why, node={"node": node}).to_text()
            return
        *whole, rest = (rest + new).split(b"\n")
        for line in whole:
            yield line.decode()
            if CellOutcome.from_text(line).last:
                return
