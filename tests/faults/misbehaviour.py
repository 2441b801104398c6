"""Probe functions that misbehave in every way a child can.

``later(name)`` makes the child misbehave when it is stopped.
"""

import atexit
import ctypes
import mmap
import os
import resource
import signal
import sys
import time


def fine():
    return 1


def later(name):
    atexit.register(globals()[name])


def hang():
    time.sleep(600)


def hang_in_native_code():
    ctypes.PyDLL(None).sleep(600)  # does not release the GIL


def hang_deaf_to_term():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def exit_in_silence():
    os._exit(0)


def segfault():
    os.kill(os.getpid(), signal.SIGSEGV)


def raise_error():
    raise RuntimeError("what upstream said")


def garbage():
    _write(b"{{{ not a frame\n")
    time.sleep(600)


def truncated():
    _write(b'{"ok": true, "val')
    os._exit(0)


def oversized():
    _write(b'"' + b"x" * (65 << 20))
    time.sleep(600)


def flood_stdout():
    _flood(sys.stdout)


def flood_stderr():
    _flood(sys.stderr)


def zombies():
    for _ in range(200):
        if os.fork() == 0:
            os._exit(0)
    time.sleep(600)


def daemon():
    """Start a grandchild in its own session that ignores SIGTERM and keeps the output open, then
    answer normally."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        os._exit(0)


def eat_memory():
    held = mmap.mmap(-1, 1 << 30)
    for page in range(0, 1 << 30, mmap.PAGESIZE):
        held[page] = 1
    time.sleep(600)


def over_its_rlimit():
    """Ask for more memory than the resource limit allows, which raises MemoryError."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    return len(bytearray(2 << 30))


def fork_bomb():
    """Fork in every process, each in its own session, up to 400 processes in total."""
    count = mmap.mmap(-1, 4096)
    while count[0] * 256 + count[1] < 400:
        count[0], count[1] = divmod(count[0] * 256 + count[1] + 1, 256)
        if os.fork() == 0:
            os.setsid()
        time.sleep(0.005)
    time.sleep(600)


def many_threads():
    import threading

    for _ in range(300):
        threading.Thread(target=time.sleep, args=(600,)).start()
    time.sleep(600)


def all_descriptors():
    try:
        while True:
            os.open(os.devnull, os.O_RDONLY)
    except OSError:
        time.sleep(600)


def shared_memory():
    path = f"/dev/shm/vllm_regress_fault_{os.getpid()}"
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    os.ftruncate(fd, 4096)
    globals()["_mapped"] = mmap.mmap(fd, 4096)
    time.sleep(600)


def named_semaphore():
    ctypes.CDLL(None).sem_open(f"/vllm_regress_fault_{os.getpid()}".encode(), os.O_CREAT, 0o600, 0)
    time.sleep(600)


def _flood(stream):
    line = "x" * 1023 + "\n"
    for _ in range(100 * 1024):
        stream.write(line)


def _write(data):
    """Write to every socket of this process; one of them is its channel."""
    for fd in range(3, 64):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                remaining = memoryview(data)
                os.set_blocking(fd, True)
                while remaining:
                    remaining = remaining[os.write(fd, remaining) :]
        except OSError:
            pass
