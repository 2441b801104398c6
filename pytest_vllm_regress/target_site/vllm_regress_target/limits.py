"""Resource limits of one child and its descendants.

What ends a child above its limits? The nanny checks them every 0.5 s (``nanny.py``); all its
processes are stopped and killed, and the request raises ``LimitExceeded``, which is INCONCLUSIVE.
A log that grows without limit ends nothing: it is shortened to its beginning and its end (``trim``).
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Optional

Limits = dict[str, float]
"""``memory`` and ``log`` in bytes, ``processes``, ``until`` in seconds of the monotonic clock,
``session`` in seconds. A missing key: no limit."""
OptionNames = Mapping[str, str]
"""The option that sets each limit, for messages. A missing key: the user cannot set it."""
PYTEST_OPTIONS: OptionNames = {
    "memory": "--vllm-limit memory",
    "processes": "--vllm-limit processes",
    "log": "--vllm-limit log",
    "session": "--vllm-limit session",
}
_HEAD = 64 * 1024
_NAMED = 4


class Breach(NamedTuple):
    """A limit that was exceeded: its name (a key of ``OptionNames``), and what happened, as a
    sentence."""

    limit: str
    text: str


def breach(
    pids: Sequence[int], limits: Limits, options: OptionNames = PYTEST_OPTIONS
) -> Optional[Breach]:
    """Return which limit is exceeded, or None."""
    until = limits.get("until")
    if until is not None and time.monotonic() > until:
        return Breach(
            "session",
            f"the session's budget of {limits['session']:g} s is used up{_option('session', options)}",
        )
    if len(pids) > limits.get("processes", len(pids)):
        option = _option("processes", options)
        return Breach(
            "processes",
            f"it has {len(pids)} processes, and {limits['processes']:g} is the limit{option}",
        )
    memory = limits.get("memory")
    # The sum of resident memory is a cheap upper bound, because shared pages count once per
    # process.
    if memory is not None and sum(map(_resident, pids)) > memory:
        used = {pid: _proportional(pid) for pid in pids}
        if sum(used.values()) > memory:
            largest = ", ".join(
                f"{pid} {_name(pid)} {_human(used[pid])}"
                for pid in sorted(used, key=lambda pid: -used[pid])[:_NAMED]
            )
            text = "it uses {} of memory, and {} is the limit{}: {}".format(
                _human(sum(used.values())), _human(memory), _option("memory", options), largest
            )
            return Breach("memory", text)
    return None


def trim(path: str, limit: float, options: OptionNames = PYTEST_OPTIONS) -> None:
    """Shorten a log that processes append to.

    Its beginning and end stay, with a line between them that says how much was removed.
    """
    with (
        suppress(OSError),
        open(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC), "a+b") as log,
    ):
        size = log.seek(0, os.SEEK_END)
        if size <= limit:
            return
        keep = int(limit / 4)
        head = min(_HEAD, keep)
        log.seek(0)
        first = log.read(head)
        log.seek(size - keep)
        last = log.read(keep)
        log.truncate(0)  # writers in append mode continue at the new end, so nothing is overwritten
        note = "\n[... {} bytes left out: a log is limited to {}{} ...]\n".format(
            size - head - keep, _human(limit), _option("log", options)
        )
        log.write(first + note.encode() + last)


def _option(limit: str, options: OptionNames) -> str:
    """Return the option that sets the limit, in parentheses; empty if there is none."""
    return f" ({options[limit]})" if limit in options else ""


def _resident(pid: int) -> int:
    with (
        suppress(OSError, ValueError, IndexError),
        open(f"/proc/{pid}/statm") as statm,
    ):
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _proportional(pid: int) -> int:
    """Return memory in bytes, each shared page divided by the number of processes that share it.

    Forked processes share most of vLLM.
    """
    with suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as smaps:
        for line in smaps:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return _resident(pid)


def _name(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/comm") as comm:
        return comm.read().strip()
    return "?"


def _human(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
