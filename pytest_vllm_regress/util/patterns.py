"""Searching a pattern of somebody else's, within a time. Most are searched at once; one that could take long, in a process that can be ended.

Python's ``re`` tries every way in which a pattern may match: for ``(a+)+b`` that is without end on thirty letters, and nothing in the same
process can stop it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import re
import select
import subprocess
import sys
import threading
import time
from typing import Any

from ..errors import UsageError

# The standard library's own reader of patterns; it has no public name, and no types.
codes: Any = importlib.import_module("re._constants")
parser: Any = importlib.import_module("re._parser")

SECONDS = 5.0
MAX_TEXT = 4 * 1024 * 1024
"""Characters that are searched; of a longer text its two ends, half of it each."""
_STEPS = 1e8
"""What a search may take at most without a process of its own: about a second."""
_SINGLE = (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN, codes.AT, codes.CATEGORY)
# SIGALRM ends the process in the midst of a search, should nobody be left to do it.
_WORKER = """
import json, re, signal, sys
for line in sys.stdin:
    asked = json.loads(line)
    signal.setitimer(signal.ITIMER_REAL, asked["seconds"] + 1)
    found = re.search(asked["pattern"], asked["text"], re.MULTILINE)
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(json.dumps(found and found.span()), flush=True)
"""


class PatternTooSlow(UsageError):
    """A pattern was not searched to the end in the time it had."""


def search(pattern: str, text: str, seconds: float = SECONDS) -> tuple[int, int] | None:
    """The first place in ``text`` that ``pattern`` matches (MULTILINE): where it begins and ends. Raises ``PatternTooSlow``."""
    if len(text) > MAX_TEXT:
        half = MAX_TEXT // 2
        if (found := search(pattern, text[:half], seconds)) is not None:
            return found
        behind = len(text) - half
        found = search(pattern, text[behind:], seconds)
        return found and (found[0] + behind, found[1] + behind)
    if is_cheap(pattern, len(text)):
        match = re.search(pattern, text, re.MULTILINE)
        return match.span() if match else None
    return _searcher.search(pattern, text, seconds)


def is_cheap(pattern: str, length: int) -> bool:
    """The pattern takes few steps on a text of ``length`` characters, whatever the text."""
    cost, degree = _cost_of(pattern)
    return bool(cost * max(1, length) ** (degree + 1) <= _STEPS)


@functools.lru_cache(maxsize=512)
def _cost_of(pattern: str) -> tuple[float, int]:
    try:
        return _cost(parser.parse(pattern, re.MULTILINE))
    except (re.error, RecursionError, OverflowError):
        return float("inf"), 0


def _cost(parsed: Any) -> tuple[float, int]:
    """How many steps a match takes at most at one place of a text: a number, times the text's length to a power."""
    cost, degree = 1.0, 0
    for code, argument in parsed:
        inner, more = 1.0, 0
        if code is codes.SUBPATTERN:
            inner, more = _cost(argument[-1])
        elif code is codes.BRANCH:
            branches = [_cost(each) for each in argument[1]]
            inner, more = sum(each for each, _ in branches), max(power for _, power in branches)
        elif code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            least, most, repeated = argument
            single = len(repeated) == 1 and repeated[0][0] in _SINGLE
            if single and most is codes.MAXREPEAT:
                more = 1
            elif single:
                inner = most - least + 1 + most / 64
            else:
                once, power = _cost(repeated)
                ways = (
                    float("inf") if power or most is codes.MAXREPEAT or most > 64 else (once + (least != most)) ** most
                )
                inner = ways
        elif code not in _SINGLE:  # what looks around, refers back, or depends on a group
            return float("inf"), 0
        cost, degree = cost * max(1.0, inner), degree + more
    return cost + 1, degree


class _Searcher:
    """The process that searches: started when it is first needed, used again, ended when a search takes too long."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def search(self, pattern: str, text: str, seconds: float) -> tuple[int, int] | None:
        with self._lock:
            request = json.dumps({"pattern": pattern, "text": text, "seconds": seconds}).encode() + b"\n"
            process = self._running()
            try:
                answer = _ask(process, request, time.monotonic() + seconds)
            except (OSError, ValueError):
                self.end()
                raise PatternTooSlow(
                    f"the pattern {pattern[:80]!r} cannot be searched: the process for it ended"
                ) from None
            except BaseException:
                self.end()
                raise
            if answer is None:
                self.end()
                raise PatternTooSlow(
                    f"the pattern {pattern[:80]!r} was searched for {seconds:g} s in {len(text)} characters without an end: "
                    "repeat nothing that holds a repetition, and give repetitions a bound"
                )
            return None if answer == [] else (answer[0], answer[1])

    def end(self) -> None:
        """End the process, if it is ours and there is one."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self.end()
            self._owner = os.getpid()
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={},
                cwd=os.sep,
                start_new_session=True,
            )
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                os.set_blocking(stream.fileno(), False)
        return self._process


def _ask(process: subprocess.Popen[bytes], request: bytes, until: float) -> list[int] | None:
    """The answer, [] where nothing was found, or None when there is none by ``until``. Raises ``OSError`` or ``ValueError`` when it ended."""
    assert process.stdin is not None and process.stdout is not None
    left, answer = memoryview(request), b""
    while not answer.endswith(b"\n"):
        wanted = [process.stdin] if left else []
        readable, writable, _ = select.select([process.stdout], wanted, [], max(0.0, until - time.monotonic()))
        if not readable and not writable:
            return None
        if writable:
            left = left[os.write(process.stdin.fileno(), left[:65536]) :]
        if readable:
            read = os.read(process.stdout.fileno(), 65536)
            if not read:
                raise ValueError("it ended")
            answer += read
    found = json.loads(answer)
    return [] if found is None else list(map(int, found))


_searcher = _Searcher()
atexit.register(_searcher.end)
