"""What vLLM spawns, forked from a process that has imported vLLM already: a fork server behind multiprocessing's start method spawn.

Spawning runs an interpreter (``multiprocessing.set_executable``). Here that is a small program: it hands its arguments, variables and
open files to the fork server, and then stands for the process it got there: signals are passed on, the end comes back, and when one of
the two is killed so is the other. What is pickled and what is inherited stay as they are with spawn; only the imports are done already.
"""

import atexit
import contextlib
import ctypes
import fcntl
import json
import multiprocessing
import os
import select
import signal
import socket
import struct
import sys
import traceback
from typing import Any, Dict, List, Tuple

LEAVE = "VLLM_REGRESS_PLAIN_SPAWN"
"""Set where the user wants processes to be spawned: then nothing is changed."""
NAME = "fork-server"
"""What the kernel calls the fork server: it is no part of an engine."""
_MARK = "--multiprocessing-fork"
_HEAD = struct.Struct("!I")
_MOST_FDS = 250
_PATIENCE_S = 10.0
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_NUDGE, _NUDGE_S = signal.SIGURG, 0.05
"""Sent after a signal that was passed on: it comes a moment later than it would without this program, maybe to a process that looks for what another
one has closed in the meantime, in C, and then waits there without having seen it."""
_LONGEST_SOCKET, _LONGEST_SHEBANG = 100, 240
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_PROGRAM = """#!{python} -SEB
import sys
sys.path.insert(0, {place!r})
from vllm_regress_target.spawning import launch
launch({python!r}, {address!r})
"""


def quicken(folder: str) -> bool:
    """What this process and its descendants spawn from now on is forked from a copy of this process as it is now.

    ``folder`` gets the program and a socket. False, with nothing changed, where it is not wanted, cannot be done, or would not be sound: threads.
    """
    base = os.path.join(os.path.abspath(folder), "spawn-{}".format(os.getpid()))
    program, address = base + ".py", base + ".sock"
    if (
        LEAVE in os.environ
        or len(os.listdir("/proc/self/task")) > 1
        or len(address) > _LONGEST_SOCKET
        or len(sys.executable) > _LONGEST_SHEBANG
    ):
        return False
    place = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    descriptor = os.open(program, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
    with open(descriptor, "w") as file:
        file.write(_PROGRAM.format(python=sys.executable, place=place, address=address))
    if not os.access(program, os.X_OK):  # a file system without programs
        os.unlink(program)
        return False
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    multiprocessing.set_executable(program)
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    if os.fork() == 0:
        try:
            _Server(listener, parent).run()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    listener.close()
    return True


class _Server:
    """The fork server: one connection for each process that it forked, until that ends. It dies with the process that it is a copy of."""

    def __init__(self, listener: socket.socket, parent: int) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(0)
        with open("/proc/self/comm", "rb") as comm:
            self._name = comm.read().strip()
        _call_itself(NAME.encode())
        self._listener = listener
        self._links: Dict[int, Tuple[socket.socket, int]] = {}
        self._wake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(wake)

    def run(self) -> None:
        while True:
            poll = select.poll()
            for fd in (self._wake, self._listener.fileno(), *self._links):
                poll.register(fd, select.POLLIN)
            for fd, _ in poll.poll():
                if fd == self._wake:
                    os.read(self._wake, 4096)
                elif fd == self._listener.fileno():
                    self._accept()
                elif fd in self._links:
                    self._pass_on(*self._links[fd])
            self._reap()

    def _accept(self) -> None:
        link, _ = self._listener.accept()
        link.settimeout(_PATIENCE_S)
        try:
            request, fds = _receive(link)
        except (OSError, ValueError):
            link.close()
            return
        pid = os.fork()
        if pid == 0:
            _call_itself(self._name)
            _become(request, fds)
        for fd in fds:
            os.close(fd)
        self._links[link.fileno()] = link, pid

    def _pass_on(self, link: socket.socket, pid: int) -> None:
        numbers = b""
        with contextlib.suppress(OSError):
            numbers = link.recv(64)
        for number in numbers or (signal.SIGKILL,):  # nothing: the program that stands for it was killed
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if not numbers:
            del self._links[link.fileno()]
            link.close()

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            pid, status = os.waitpid(-1, os.WNOHANG)
            while pid:
                for fd, (link, its) in list(self._links.items()):
                    if its == pid:
                        with contextlib.suppress(OSError):
                            link.sendall(_HEAD.pack(status))
                        del self._links[fd]
                        link.close()
                pid, status = os.waitpid(-1, os.WNOHANG)


def _become(request: Dict[str, Any], fds: List[int]) -> None:
    """Go on as the process that was to be spawned; never returns."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(_NUDGE, lambda *_: None)
        _place(dict(zip(fds, request["fds"])))
        os.environ.clear()
        os.environ.update(request["env"])
        count_where_asked()
        os.chdir(request["cwd"])
        at = request["argv"].index("-c")
        sys.argv = ["-c", *request["argv"][at + 2 :]]
        exec(compile(request["argv"][at + 1], "<string>", "exec"), {"__name__": "__main__"})
        status = 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status & 0xFF)


def count_where_asked() -> None:
    """prometheus_client decides at its import, by a variable, where it counts; a V0 server sets that after its own import, for those it spawns."""
    values = sys.modules.get("prometheus_client.values")
    if values is not None:
        values.ValueClass = values.get_value_class()  # type: ignore[attr-defined]


def _call_itself(name: bytes) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name, 0, 0, 0)


def _place(wanted: Dict[int, int]) -> None:
    """Have exactly these files open: ``wanted`` says the number that each is to have."""
    free = max([*wanted, *wanted.values()]) + 1
    parked = {fcntl.fcntl(fd, fcntl.F_DUPFD, free): number for fd, number in wanted.items()}
    for entry in os.listdir("/proc/self/fd"):
        if int(entry) not in parked:
            with contextlib.suppress(OSError):  # that of the listing itself
                os.close(int(entry))
    for fd, number in parked.items():
        os.dup2(fd, number)
        os.close(fd)


def launch(python: str, address: str) -> None:
    """What multiprocessing runs instead of an interpreter. Other programs than a spawned process, as its resource tracker, are run as ever."""
    plain = [python, *sys.argv[1:]]
    link = socket.socket(socket.AF_UNIX)
    fds = sorted(fd for fd in map(int, os.listdir("/proc/self/fd")) if fd != link.fileno() and _is_open(fd))
    if _MARK not in sys.argv or len(fds) > _MOST_FDS:
        os.execv(python, plain)
    try:
        link.connect(address)
    except OSError:  # the fork server is gone
        os.execv(python, plain)
    request = {"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(), "fds": fds}
    body = json.dumps(request).encode("utf-8", "surrogateescape")
    socket.send_fds(link, [_HEAD.pack(len(body))], fds)
    link.sendall(body)
    for number in _PASSED_ON:
        signal.signal(number, lambda number, _: _pass_on(link, number))
    signal.signal(signal.SIGALRM, lambda *_: _pass_on(link, _NUDGE, again=False))
    for fd in fds:
        os.close(fd)
    end = link.recv(_HEAD.size, socket.MSG_WAITALL)
    status = _HEAD.unpack(end)[0] if len(end) == _HEAD.size else signal.SIGKILL
    if os.WIFSIGNALED(status):
        _die_of(os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def _pass_on(link: socket.socket, number: int, *, again: bool = True) -> None:
    with contextlib.suppress(OSError):  # it has ended
        link.send(bytes([number]))
    if again:
        signal.setitimer(signal.ITIMER_REAL, _NUDGE_S)


def _receive(link: socket.socket) -> Tuple[Dict[str, Any], List[int]]:
    head, fds, _, _ = socket.recv_fds(link, _HEAD.size, _MOST_FDS)
    try:
        (left,) = _HEAD.unpack(head)
        body = b""
        while left > len(body):
            part = link.recv(left - len(body))
            if not part:
                raise ValueError("the request is cut off")
            body += part
        return json.loads(body.decode("utf-8", "surrogateescape")), fds
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


def _die_of(number: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
