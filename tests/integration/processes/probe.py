"""Children that misbehave, each in its own way."""

import ctypes
import gc
import os
import signal
import subprocess
import sys
import time


def echo(value):
    return value


def pids():
    return {"pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0)}


def thawed():
    """Return how many objects another, short-lived process thaws."""
    gc.freeze()
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        before = gc.get_freeze_count()
        gc.unfreeze()
        os.write(write_end, b"%d" % (before - gc.get_freeze_count()))
        os._exit(0)
    os.wait()
    return int(os.read(read_end, 20))


def hang():
    time.sleep(600)


def hang_in_native_code():
    ctypes.PyDLL(None).sleep(600)  # holds the interpreter lock


def hang_and_ignore_term():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def plugin_names():
    """Return what this process and an interpreter that it starts import."""
    import regress_plugin

    code = "import vllm_regress_target.nanny, regress_plugin; print(regress_plugin.NAME)"
    return [
        regress_plugin.NAME,
        subprocess.check_output([sys.executable, "-c", code], text=True).strip(),
    ]


def ignore(number):
    signal.signal(number, signal.SIG_IGN)


def exit_in_silence():
    os._exit(0)


def crash():
    os.kill(os.getpid(), signal.SIGSEGV)


def raise_error(text):
    raise RuntimeError(text)


def not_json():
    return object()


def flood(megabytes):
    line = "x" * 1023 + "\n"
    for _ in range(megabytes * 1024):
        sys.stdout.write(line)
    return megabytes


def say_garbage(fd_name):
    """Write invalid frames to every socket of this process."""
    for fd in range(3, 64):
        try:
            if os.readlink("/proc/self/fd/{}".format(fd)).startswith("socket:"):
                os.write(fd, fd_name.encode() + b"\n")
        except OSError:
            pass
    time.sleep(600)


def leave_grandchild(hold_output):
    """A daemonised grandchild: in its own session, with a dead parent.

    It writes nothing, and holds our output open on request.
    """
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write, str(os.getpid()).encode())
            os.close(write)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if not hold_output:
                os.dup2(os.open(os.devnull, os.O_RDWR), 1)
                os.dup2(1, 2)
            time.sleep(600)
        os._exit(0)
    os.close(write)
    return int(os.read(read, 32))


def leave_exec_grandchild():
    """Like ``leave_grandchild``, but the grandchild runs another program, like Ray's daemons."""
    return subprocess.Popen(["sleep", "600"], start_new_session=True).pid


def leave_grandchild_and_hang():
    leave_grandchild(True)
    time.sleep(600)


def leave_shared_memory():
    """A segment that is never unlinked and stays mapped until the end."""
    import mmap

    path = "/dev/shm/vllm_regress_test_{}".format(os.getpid())
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    os.ftruncate(fd, 4096)
    globals()["_mapped"] = mmap.mmap(fd, 4096)
    return path


def hold_shared_memory(map_it):
    """Start a process that has a segment mapped, or only open, until it is killed.

    Returns its pid and the segment's path.
    """
    import mmap

    read, write = os.pipe()
    pid = os.fork()
    path = "/dev/shm/vllm_regress_test_{}".format(pid or os.getpid())
    if pid == 0:
        fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        if map_it:
            os.ftruncate(fd, 4096)
            _KEPT.append(mmap.mmap(fd, 4096))
            os.close(fd)
        os.write(write, b"1")
        time.sleep(600)
    os.read(read, 1)
    return pid, path


def map_file(path):
    """Keep the file mapped in this process and in a child of it."""
    import mmap

    with open(path, "r+b") as file:
        _KEPT.append(mmap.mmap(file.fileno(), 0))
    if os.fork() == 0:
        time.sleep(600)


_KEPT = []


def leave_semaphore():
    """A named semaphore that is never unlinked, like those of Ray's compiled graphs."""
    import ctypes

    name = "vllm_regress_test_{}".format(os.getpid())
    ctypes.CDLL(None).sem_open(b"/" + name.encode(), os.O_CREAT, 0o600, 0)
    return "/dev/shm/sem." + name
