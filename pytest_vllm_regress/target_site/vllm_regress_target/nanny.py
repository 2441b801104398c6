"""One small process per child: it reaps what the child leaves, and ends everything when the controller is gone.

The nanny is a child subreaper, so whatever the child starts stays below it even when re-parented or in another session. It imports
nothing of vLLM's and starts no thread.
"""

import contextlib
import ctypes
import os
import re
import select
import signal
import time
from typing import Callable, Container, Dict, Iterable, Iterator, List, Set, Tuple

from .limits import Limits, breach, trim
from .protocol import Frame, FrameSocket, PeerClosed, ProtocolViolation

TAG = "VLLM_REGRESS_TAG"
_PR_SET_CHILD_SUBREAPER = 36
_SWEEP_S = 5.0
_LOOK_S = 0.5
_SOON_S = 0.02
"""Between a file's making and the look for who has it mapped: it is mapped a moment later."""
_IN_CREATE, _IN_CLOEXEC, _IN_NONBLOCK = 0x100, 0o2000000, 0o4000
SEGMENTS = "shared-memory"
"""In a run directory: inode and path of each shared-memory file that a child had mapped, one a line."""
_OTHERS: Set[int] = set()
"""Inodes of what was below /dev/shm before the family. It may map that, a checkpoint for example, and it is not removed."""
_STOP_ROUNDS = 200


def become_subreaper() -> None:
    """Orphans among our descendants become our children instead of init's (Linux, prctl(2)). What is below /dev/shm already is not theirs."""
    _OTHERS.update(shm_inodes())
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def watch(lifeline: FrameSocket, child_main: Callable[[], int], keep: Set[int], request: Frame) -> int:
    """Fork the child, report its life over ``lifeline``, return when the controller lets go.

    ``keep`` are the descriptors the child may inherit; the child's own exit status is ``child_main``'s result. A family that goes
    over the request's limits is killed, and the controller is told why.
    """
    become_subreaper()
    os.setsid()
    wake_r, wake_w = os.pipe()
    os.set_blocking(wake_w, False)
    signal.set_wakeup_fd(wake_w)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    told_r, told_w = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told_w)
        if not os.read(told_r, 1):  # killed before it could say whom it has started: nobody would know of us
            os._exit(1)
        os.close(told_r)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.close(wake_r)
        os.close(wake_w)
        lifeline.close()
        return child_main()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for fd in keep:
        os.close(fd)
    segments = Segments(os.path.join(os.path.dirname(request["cwd"]), SEGMENTS))
    with contextlib.suppress(PeerClosed):
        lifeline.send({"event": "started", "pid": child})
        os.write(told_w, b"1")
        for fd in (told_r, told_w):
            os.close(fd)
        _attend(lifeline, wake_r, child, request, segments)
    end_descendants()
    segments.remove()
    trim(request["log"], request.get("limits", {}).get("log", float("inf")))  # what came since the last look
    return 0


def _attend(lifeline: FrameSocket, wake_r: int, child: int, request: Frame, segments: "Segments") -> None:
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    poll.register(wake_r, select.POLLIN)
    made = _made_segments()
    if made >= 0:
        poll.register(made, select.POLLIN)
    limits: Limits = request.get("limits", {})
    look_at = time.monotonic() + _LOOK_S
    while True:
        _reap(lifeline, child)
        if time.monotonic() >= look_at:
            pids = descendants(os.getpid())
            segments.note(pids)
            limits = _enforce(lifeline, limits, request["log"], pids)
            look_at = time.monotonic() + _LOOK_S
        ready = [fd for fd, _ in poll.poll(max(0.0, look_at - time.monotonic()) * 1000)]
        if wake_r in ready:
            os.read(wake_r, 4096)
        if made in ready:
            os.read(made, 4096)
            look_at = min(look_at, time.monotonic() + _SOON_S)
        if lifeline.fileno() in ready:
            try:
                frame = lifeline.pop()
            except (PeerClosed, ProtocolViolation):
                return
            if frame is not None and frame.get("op") == "end":
                return


def _made_segments() -> int:
    """A descriptor that can be read when a file has come to /dev/shm (inotify(7)); -1 where the kernel gives no more of them."""
    libc = ctypes.CDLL(None)
    fd = int(libc.inotify_init1(_IN_CLOEXEC | _IN_NONBLOCK))
    if fd >= 0:
        libc.inotify_add_watch(fd, b"/dev/shm", _IN_CREATE)
    return fd


def _enforce(lifeline: FrameSocket, limits: Limits, log: str, pids: List[int]) -> Limits:
    """Look once; the limits to look for from now on: none after a breach."""
    trim(log, limits.get("log", float("inf")))
    over = breach(pids, limits)
    if over is None:
        return limits
    event: Frame = {"event": "limit", "text": over}
    lifeline.send(event)
    _kill_at_once()
    return {}


def _kill_at_once() -> None:
    """Stop everything below this process until nothing new appears, then kill it: what forks without end is not outrun by KILL alone."""
    stopped: Set[int] = set()
    for _ in range(_STOP_ROUNDS):
        new = set(descendants(os.getpid())) - stopped
        if not new:
            break
        _signal(new, signal.SIGSTOP)
        stopped |= new
    segments = mapped_shm(stopped, _OTHERS)
    _signal(stopped, signal.SIGKILL)
    _unlink(segments)


def _reap(lifeline: FrameSocket, child: int) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid == child:
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
            event: Frame = {"event": "exit", "code": code}
            lifeline.send(event)


def descendants(root: int) -> List[int]:
    """Pids below ``root``, from /proc."""
    children: Dict[int, List[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open("/proc/{}/stat".format(entry), "rb") as stat:
                    fields = stat.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] not in (b"Z", b"X"):
                children.setdefault(int(fields[1]), []).append(int(entry))
    found: List[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found.extend(below)
        todo.extend(below)
    return found


def end_descendants() -> None:
    """Kill everything below this process and remove the shared-memory files those processes had mapped."""
    until = time.monotonic() + _SWEEP_S
    segments: Set[str] = set()
    while time.monotonic() < until:
        pids = descendants(os.getpid())
        if not pids:
            break
        segments |= mapped_shm(pids, _OTHERS)
        _signal(pids, signal.SIGKILL)
        # A killed child becomes waitable at once or very soon; waitid blocks only until one of ours does.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)
    _unlink(segments)


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _unlink(paths: Iterable[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


class Segments:
    """Notes, in a file of the run, which shared-memory files the family has mapped or open: it says whose they are, should nobody be left."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._there: Set[str] = set()  # at the last look
        self._known: Set[str] = (
            set()
        )  # at the last look and the one before: a file is mapped a moment after it was made
        self._noted: Dict[str, int] = {}
        self._pids: Set[int] = set()

    def note(self, pids: List[int]) -> None:
        """Look at the maps and descriptors of the family, which is ``pids``, when files have come to /dev/shm: twice for each file."""
        self._pids.update(pids)
        there = set(os.listdir("/dev/shm"))
        known, self._known, self._there = self._known, there & self._there, there
        if there <= known:
            return
        new = mapped_shm(pids, _OTHERS, opened=True) - set(self._noted)
        with contextlib.suppress(OSError), open(self._file, "a") as file:
            for path in new:
                self._noted[path] = os.stat(path).st_ino
                file.write("{} {}\n".format(self._noted[path], path))

    def remove(self) -> None:
        """Remove those that are still there: nobody of the family lives to do it."""
        for path, number in self._noted.items():
            with contextlib.suppress(OSError):
                if os.stat(path).st_ino == number:
                    os.unlink(path)
        _unlink(os.path.join("/dev/shm", name) for name in os.listdir("/dev/shm") if self._orphaned_semaphore(name))

    def _orphaned_semaphore(self, name: str) -> bool:
        """A semaphore of Ray's compiled graphs, named after its maker, of the family. A maker that dies of an exception makes both anew, and
        ends: nobody has them mapped when somebody looks."""
        made = re.match(r"sem\.(?:hdr|obj)(\d+)-\d+$", name)
        return made is not None and int(made[1]) in self._pids and not os.path.exists("/proc/" + made[1])


def shm_inodes() -> Set[int]:
    """Inodes of the files that are below /dev/shm now."""
    return {number for _, number in _shm_files()}


def mapped_shm(pids: Iterable[int], others: Container[int] = (), *, opened: bool = False) -> Set[str]:
    """Files below /dev/shm that any of the processes has mapped, or ``opened``: it may end before it maps what it made. None of ``others``, inodes.

    Found by inode: a named semaphore is mapped under a name of the moment and gets its own name afterwards (glibc's sem_open).
    """
    held: Set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError), open("/proc/{}/maps".format(pid)) as maps:
            held |= {int(line.split(None, 5)[4]) for line in maps if "/dev/shm/" in line}
        if opened:
            held |= _opened_shm(pid)
    return {path for path, number in _shm_files() if number in held and number not in others} if held else set()


def _opened_shm(pid: int) -> Set[int]:
    found: Set[int] = set()
    with contextlib.suppress(OSError):
        for fd in os.listdir("/proc/{}/fd".format(pid)):
            path = "/proc/{}/fd/{}".format(pid, fd)
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith("/dev/shm/"):
                    found.add(os.stat(path).st_ino)
    return found


def _shm_files() -> Iterator[Tuple[str, int]]:
    for folder, _, names in os.walk("/dev/shm"):
        for name in names:
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                yield path, os.lstat(path).st_ino
