"""Measure how long `vllm-regress explain` takes for a log of 200 MB, and how much memory: a
server's log, and texts made to be slow.

    python benchmarks/explain.py [MEGABYTES]

It prints seconds of processor time and the peak memory of a process of its own for each log.
"""

from __future__ import annotations

import io
import multiprocessing
import resource
import sys
import time
from collections.abc import Iterator

from pytest_vllm_regress.answers.explain.log import explain
from pytest_vllm_regress.cases.loading import default_cases_dir, load_all_cases
from pytest_vllm_regress.cases.proofs.lint import SOUND_LOGS

TRACEBACK = """ERROR 11-23 17:35:54 [core.py:634] Traceback (most recent call last):
ERROR 11-23 17:35:54 [core.py:634]   File "/opt/lib/python3.11/site-packages/vllm/v1/engine/core.py", line {n}, in step
ERROR 11-23 17:35:54 [core.py:634]     scheduler_output = self.scheduler.schedule()
ERROR 11-23 17:35:54 [core.py:634] ValueError: request {n} is not known
"""
HOSTILE = {
    "only tracebacks": TRACEBACK,
    "only assertions": "E   AssertionError: expected JSON {n}, got {n} from the stream, got []\n",
    "one line": "x {n} ",
    "one line of errors": "Traceback (most recent call last) AssertionError: {n} ",
    "empty lines": "\n",
    "escapes": "\x1b[31m\x1b]0;{n}\x07 AssertionError: \udcff\x00\n",
    "open tracebacks": "(p{n} pid={n}) Traceback (most recent call last):\n",
}


class Repeated(io.RawIOBase):
    """A stream of ``size`` bytes that repeats a text, numbered. It holds one block."""

    def __init__(self, text: str, size: int) -> None:
        self._blocks, self._left = self._numbered(text), size

    @staticmethod
    def _numbered(text: str) -> Iterator[bytes]:
        number = 0
        while True:
            lines = []
            for _ in range(1 + 500_000 // len(text)):
                lines.append(text.replace("{n}", str(number)))
                number += 1
            yield "".join(lines).encode("utf-8", "surrogateescape")

    def read(self, size: int = -1) -> bytes:
        block = next(self._blocks)[: self._left]
        self._left -= len(block)
        return block


def measure(name: str, text: str, size: int) -> None:
    """Print the time and the memory for one log."""
    cases = load_all_cases(default_cases_dir())
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    explanation = explain(Repeated(text, size), cases, name)  # type: ignore[arg-type]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    counts = f"{len(explanation.findings)} findings, {len(explanation.unknown)} other failures"
    print(
        f"{name:22}{time.process_time() - began:6.1f} s{grown / 1024:7.0f} MiB more  {counts}",
        flush=True,
    )


def main() -> None:
    size = int(sys.argv[1] if len(sys.argv) > 1 else 200) * 1_000_000
    logs = {
        "a server's log": (SOUND_LOGS / "vllm-0.8.5.log")
        .read_text(encoding="utf-8")
        .replace("{", "(")
    }
    for name, text in {**logs, **HOSTILE}.items():
        process = multiprocessing.get_context("spawn").Process(
            target=measure, args=(name, text, size)
        )
        process.start()
        process.join()


if __name__ == "__main__":
    main()
