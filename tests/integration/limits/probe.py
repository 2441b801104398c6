"""Children that exceed their limits."""

import mmap
import os
import signal
import sys
import time

HELD = []


def allocate(mib, share, then_sleep=False):
    """Use this much memory in one process, or in ``share`` processes that share the pages."""
    held = mmap.mmap(-1, mib << 20)
    HELD.append(held)
    for page in range(0, mib << 20, mmap.PAGESIZE):
        held[page] = 1
    for _ in range(share - 1):
        if os.fork() == 0:
            for page in range(0, mib << 20, mmap.PAGESIZE):
                assert held[page] == 1
            time.sleep(600)
    if then_sleep:
        time.sleep(600)
    return mib


def fork_bomb(at_most):
    """Every process forks, leaves its session and ignores SIGTERM, up to ``at_most`` processes in
    total."""
    count = mmap.mmap(-1, 4096)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while count[0] * 256 + count[1] < at_most:
        started = count[0] * 256 + count[1] + 1
        count[0], count[1] = divmod(started, 256)
        if os.fork() == 0:
            os.setsid()
        time.sleep(0.005)
    time.sleep(600)


def flood(first, line, mib):
    """Write this much output from two processes, between a first and a last line."""
    print(first, flush=True)
    other = os.fork()
    block = (line + "\n") * (65536 // (len(line) + 1))
    for _ in range(mib * 16 // 2):
        sys.stdout.write(block)
    sys.stdout.flush()
    if other == 0:
        os._exit(0)
    os.waitpid(other, 0)
    print("the last line", flush=True)
    return mib


def say(text):
    print(text, flush=True)


def sleep():
    time.sleep(600)
