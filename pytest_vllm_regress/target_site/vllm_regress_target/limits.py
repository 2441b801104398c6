"""What the family of one child may use. Its nanny looks now and then, and ends the family when it uses more."""

import contextlib
import os
import time
from typing import Dict, Optional, Sequence

Limits = Dict[str, float]
"""memory in bytes, processes, log in bytes, until in seconds of the monotonic clock, session in seconds; what is missing has no limit."""
_HEAD = 64 * 1024
_NAMED = 4


def breach(pids: Sequence[int], limits: Limits) -> Optional[str]:
    """What is over its limit, in words; None when nothing is."""
    until = limits.get("until")
    if until is not None and time.monotonic() > until:
        return "the session's budget of {:g} s is used up (--vllm-session-timeout)".format(limits["session"])
    if len(pids) > limits.get("processes", len(pids)):
        return "it has {} processes, and {:g} is the limit (--vllm-max-processes)".format(
            len(pids), limits["processes"]
        )
    most = limits.get("memory")
    if (
        most is not None and sum(map(_resident, pids)) > most
    ):  # an upper bound that is cheap: shared pages count in each process
        used = {pid: _proportional(pid) for pid in pids}
        if sum(used.values()) > most:
            named = ", ".join(
                "{} {} {}".format(pid, _name(pid), _human(used[pid]))
                for pid in sorted(used, key=lambda p: -used[p])[:_NAMED]
            )
            return "it uses {} of memory, and {} is the limit (--vllm-max-memory): {}".format(
                _human(sum(used.values())), _human(most), named
            )
    return None


def trim(path: str, most: float) -> None:
    """Shorten a log that its writers append to: its head and its tail stay, and a line between says how much went. One that is gone stays so."""
    with contextlib.suppress(OSError), open(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC), "a+b") as log:
        size = log.seek(0, os.SEEK_END)
        if size <= most:
            return
        keep = int(most / 4)
        head = min(_HEAD, keep)
        log.seek(0)
        first = log.read(head)
        log.seek(size - keep)
        last = log.read(keep)
        log.truncate(0)  # who appends goes on at the new end, and so do we: nothing of theirs is overwritten
        note = "\n[... {} bytes left out: a log is limited to {} (--vllm-max-log) ...]\n".format(
            size - head - keep, _human(most)
        )
        log.write(first + note.encode() + last)


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/{}/statm".format(pid)) as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _proportional(pid: int) -> int:
    """Memory with each shared page divided among those who share it: forked processes share most of vLLM."""
    with contextlib.suppress(OSError), open("/proc/{}/smaps_rollup".format(pid)) as smaps:
        for line in smaps:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return _resident(pid)


def _name(pid: int) -> str:
    with contextlib.suppress(OSError), open("/proc/{}/comm".format(pid)) as comm:
        return comm.read().strip()
    return "?"


def _human(size: float) -> str:
    return "{:.1f} GiB".format(size / 2**30) if size >= 2**30 else "{:.0f} MiB".format(size / 2**20)
