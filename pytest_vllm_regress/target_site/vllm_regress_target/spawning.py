"""A fork server behind multiprocessing's start method spawn, so that processes which vLLM spawns do
not import vLLM again.

Spawning runs an interpreter (``multiprocessing.set_executable``). Here that interpreter is a small
launcher: it sends its arguments, environment and open files to the fork server and then stands for
the forked process. It passes signals on and exits with the same status, and when one of the two is
killed, the other is killed, too. Pickling and inheritance work as with spawn; only the imports are
already done.
"""

import atexit
import ctypes
import fcntl
import multiprocessing
import os
import pickle
import select
import signal
import socket
import struct
import sys
import traceback
from contextlib import suppress
from typing import Any, Callable

from .protocol import (
    MAX_FDS,
    FrameSocket,
    FrameTimeout,
    PeerClosed,
    ProtocolViolation,
)

DISABLED = "VLLM_REGRESS_PLAIN_SPAWN"
"""Environment variable that is set when the user requests spawned processes.

No fork server is installed then.
"""
PROCESS_NAME = "fork-server"
"""Name of the fork server's process, which does not count as a process of the engine."""
_SPAWN_OPTION = "--multiprocessing-fork"
_STATUS = struct.Struct("!I")
_REQUEST_TIMEOUT_S = 10.0
_FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_NUDGE, _NUDGE_DELAYS_S = signal.SIGURG, (0.05, 0.5, 5.0)
"""Signal sent after each forwarded signal, and the seconds before each. A forwarded signal arrives
slightly later than a direct one, and C code that checks for a closed peer and then blocks may just
have missed it; the next signal interrupts the blocking call. On a busy machine the first may come
too early."""
_MAX_SOCKET_PATH, _MAX_SHEBANG = 100, 240
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_PROGRAM = """#!{python} -SEB
import sys
sys.path.insert(0, {place!r})
from vllm_regress_target.spawning import launch
launch({python!r}, {address!r})
"""


def install_fork_server(folder: str) -> bool:
    """Let processes that this process and its descendants spawn be forked from a copy of this
    process in its present state.

    The launcher and a socket are written to ``folder``. Returns False and changes nothing if the
    user requests real spawning, if this process has threads (a fork would not be safe), or if the
    system does not allow it.
    """
    base = os.path.join(os.path.abspath(folder), f"spawn-{os.getpid()}")
    program, address = base + ".py", base + ".sock"
    if (
        DISABLED in os.environ
        or len(os.listdir("/proc/self/task")) > 1
        or len(address) > _MAX_SOCKET_PATH
        or len(sys.executable) > _MAX_SHEBANG
    ):
        return False
    place = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    descriptor = os.open(program, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
    with open(descriptor, "w") as file:
        file.write(_PROGRAM.format(python=sys.executable, place=place, address=address))
    if not os.access(program, os.X_OK):  # mounted without execute permission
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
    """The fork server.

    It keeps one connection to the launcher of each forked process, and dies with the process of
    which it is a copy.
    """

    def __init__(self, listener: socket.socket, parent: int) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(0)
        with open("/proc/self/comm", "rb") as comm:
            self._name = comm.read().strip()
        _set_process_name(PROCESS_NAME.encode())
        self._listener = listener
        self._links: dict[int, tuple[socket.socket, int]] = {}
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
                    self._forward_signals(*self._links[fd])
            self._reap()

    def _accept(self) -> None:
        link, _ = self._listener.accept()
        channel = FrameSocket(link)
        try:
            request = channel.receive(timeout_s=_REQUEST_TIMEOUT_S)
            fds = channel.take_fds(len(request["fds"]))
        except (FrameTimeout, PeerClosed, ProtocolViolation):
            channel.close()
            return
        pid = os.fork()
        if pid == 0:
            _set_process_name(self._name)
            _run_as(request, fds)
        for fd in fds:
            os.close(fd)
        self._links[link.fileno()] = link, pid

    def _forward_signals(self, link: socket.socket, pid: int) -> None:
        numbers = b""
        with suppress(OSError):
            numbers = link.recv(64)
        for number in numbers or (signal.SIGKILL,):  # end of file: the launcher was killed
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if not numbers:
            del self._links[link.fileno()]
            link.close()

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            pid, status = os.waitpid(-1, os.WNOHANG)
            while pid:
                for fd, (link, owner) in list(self._links.items()):
                    if owner == pid:
                        with suppress(OSError):
                            link.sendall(_STATUS.pack(status))
                        del self._links[fd]
                        link.close()
                pid, status = os.waitpid(-1, os.WNOHANG)


def _run_as(request: dict[str, Any], fds: list[int]) -> None:
    """Run as the process that was requested. Never returns."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(_NUDGE, lambda *_: None)
        _arrange_descriptors(dict(zip(fds, request["fds"])))
        os.environ.clear()
        os.environ.update(request["env"])
        reload_prometheus_values()
        os.chdir(request["cwd"])
        at = request["argv"].index("-c")
        sys.argv = ["-c", *request["argv"][at + 2 :]]
        exec(compile(request["argv"][at + 1], "<string>", "exec"), {"__name__": "__main__"})
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            atexit._run_exitfuncs()
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status & 0xFF)


def call_in_fork(function: Callable[[], Any]) -> Any:
    """Return the result of ``function()``, called in a fork of this process.

    Raises ``RuntimeError`` if the fork fails.
    """
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            with os.fdopen(writer, "wb") as file:
                pickle.dump(function(), file)
            status = 0
        except BaseException as error:
            print(f"in a fork: {error!r}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        pickled = file.read()
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise RuntimeError(f"a fork ended with wait status {status}")
    return pickle.loads(pickled)


def reload_prometheus_values() -> None:
    """Let prometheus_client choose again where it stores its values.

    It chooses at import by a variable, which a V0 server sets afterwards.
    """
    values = sys.modules.get("prometheus_client.values")
    if values is not None:
        values.ValueClass = values.get_value_class()  # type: ignore[attr-defined]


def _set_process_name(name: bytes) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name, 0, 0, 0)


def _arrange_descriptors(numbers: dict[int, int]) -> None:
    """Renumber the open descriptors: ``numbers`` maps each descriptor to its new number.

    All others are closed.
    """
    free = max([*numbers, *numbers.values()]) + 1
    parked = {fcntl.fcntl(fd, fcntl.F_DUPFD, free): number for fd, number in numbers.items()}
    for entry in os.listdir("/proc/self/fd"):
        if int(entry) not in parked:
            with suppress(OSError):  # the descriptor of this listing
                os.close(int(entry))
    for fd, number in parked.items():
        os.dup2(fd, number)
        os.close(fd)


def launch(python: str, address: str) -> None:
    """Run in the launcher that multiprocessing starts instead of an interpreter.

    Only spawned processes are forked. Everything else, such as multiprocessing's resource tracker,
    is run by the interpreter as usual.
    """
    command = [python, *sys.argv[1:]]
    link = socket.socket(socket.AF_UNIX)
    fds = sorted(
        fd for fd in map(int, os.listdir("/proc/self/fd")) if fd != link.fileno() and _is_open(fd)
    )
    if _SPAWN_OPTION not in sys.argv or len(fds) > MAX_FDS:
        os.execv(python, command)
    try:
        link.connect(address)
    except OSError:  # the fork server is gone
        os.execv(python, command)
    request = {"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(), "fds": fds}
    FrameSocket(link).send(request, fds)
    link.setblocking(True)
    for number in _FORWARDED_SIGNALS:
        signal.signal(number, lambda number, _: _forward(link, number, _NUDGE_DELAYS_S))
    for fd in fds:
        os.close(fd)
    end = link.recv(_STATUS.size, socket.MSG_WAITALL)
    status = _STATUS.unpack(end)[0] if len(end) == _STATUS.size else signal.SIGKILL
    if os.WIFSIGNALED(status):
        die_of(os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def _forward(link: socket.socket, number: int, nudge_after: tuple[float, ...]) -> None:
    """Pass a signal on, and nudge the process after each of these delays in seconds."""
    with suppress(OSError):  # the process has ended
        link.send(bytes([number]))
    if nudge_after:
        signal.signal(signal.SIGALRM, lambda *_: _forward(link, _NUDGE, nudge_after[1:]))
        signal.setitimer(signal.ITIMER_REAL, nudge_after[0])


def die_of(number: int) -> None:
    """End this process by a signal, without a core file."""
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
