"""The nanny: a small process for each child. It reaps the child's orphans, and kills everything
when the controller is gone.

The lifeline is a socket between controller and nanny. The kernel closes it when the controller ends
in any way, SIGKILL included; the nanny then sends SIGKILL to all its descendants (no TERM: nobody
waits for a clean end any more), removes their shared memory, and ends. The same happens when the
controller asks for it (``end``). Neither the child nor vLLM takes part. If the nanny itself is
killed, the controller notices the closed lifeline and ends the child (``processes/child_processes.py``);
if both are killed, the next run ends what carries the run's tag (``processes/abandoned.py``).

A command that is no child of an agent, such as uv or upstream's pytest, has a nanny, too (``main``;
``util/supervised.py`` starts it), and an agent has one.

The nanny is a child subreaper, so every process that the child starts remains its descendant, even
re-parented or in another session. It does not import vLLM and starts no thread.
"""

import ctypes
import math
import os
import re
import resource
import select
import signal
import sys
import time
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Callable, Optional

from .limits import Limits, OptionNames, breach, trim
from .protocol import Frame, FrameSocket, PeerClosed, ProtocolViolation

TAG = "VLLM_REGRESS_TAG"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
NOT_EXECUTED = 126
"""Exit status of the nanny of a command that cannot be executed."""
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SWEEP_S = 5.0
_TRACKERS_S = 2.0
"""Seconds for which ``end_descendants`` keeps killing: dying processes may have forked new ones.

What is left then cannot be killed (state D).
"""
_CHECK_S = 0.5
_MAPPING_S = 0.02
"""Delay between the creation of a shared-memory file and the check for processes that have mapped
it."""
_IN_CREATE, _IN_CLOEXEC, _IN_NONBLOCK = 0x100, 0o2000000, 0o4000
SEGMENTS = "shared-memory"
"""File in a run directory with the inode and path of each shared-memory file that a child had
mapped, one per line."""
_OLDER_INODES: set[int] = set()
"""Inodes of the files that were below /dev/shm before the child started.

The child may map them, but they are not removed.
"""
_STOP_ROUNDS = 200
_START_TIME = 19
"""Index of the start time among the fields of /proc/PID/stat after the name (proc_pidstat(5))."""
_ENVIRONMENT = slice(47, 49)
"""The same fields: the addresses at which the environment that the process got at exec begins and ends."""


def become_subreaper() -> None:
    """Make orphaned descendants children of this process instead of init (prctl(2)).

    Files that are below /dev/shm now are not counted as theirs.
    """
    _OLDER_INODES.update(shm_inodes())
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def carry_tag(tag: str) -> None:
    """Let /proc/PID/environ of this process and its forks show ``tag`` in place of the tag that the
    process started with, which ``os.environ`` must still contain.

    Raises ``OSError`` if the new tag is longer, or if the environment cannot be found in memory.
    """
    start, end = map(int, stat_fields(os.getpid())[_ENVIRONMENT])
    old = f"{TAG}={os.environ[TAG]}".encode()
    new = f"{TAG}={tag}".encode()
    # The kernel reports zeroes where a process may not inspect itself.
    block = b"\0" + ctypes.string_at(start, end - start) if start else b""
    place = block.find(b"\0" + old + b"\0")
    if place < 0 or len(new) > len(old):
        raise OSError(f"no room for the tag {tag!r} in /proc/{os.getpid()}/environ")
    ctypes.memmove(start + place, new.ljust(len(old), b"\0"), len(old))


def watch(
    lifeline: FrameSocket, child_main: Callable[[], int], keep: set[int], request: Frame
) -> int:
    """Fork the child, report its start and end over ``lifeline``, and return when the controller
    closes that.

    ``keep``: descriptors that the child inherits. In the child, the result of ``child_main`` is
    returned as its exit status. If the child and its descendants exceed the request's limits, they
    are killed and the controller is sent the reason.
    """
    become_subreaper()
    os.setsid()
    wake_r, wake_w = os.pipe()
    os.set_blocking(wake_w, False)
    signal.set_wakeup_fd(wake_w)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    reported_r, reported_w = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reported_w)
        if not os.read(reported_r, 1):  # the nanny was killed before it could report this process
            os._exit(1)
        os.close(reported_r)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
            signal.signal(
                number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            )
        os.close(wake_r)
        os.close(wake_w)
        lifeline.close()
        return child_main()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for fd in keep:
        os.close(fd)
    segments = Segments(os.path.join(os.path.dirname(request["cwd"]), SEGMENTS))
    with suppress(PeerClosed):
        lifeline.send({"event": "started", "pid": child})
        os.write(reported_w, b"1")
        for fd in (reported_r, reported_w):
            os.close(fd)
        _supervise(lifeline, wake_r, child, request, segments)
    end_descendants()
    segments.remove()
    _trim_log(request)  # what was logged since the last check
    return 0


def _supervise(
    lifeline: FrameSocket, wake_r: int, child: int, request: Frame, segments: "Segments"
) -> None:
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    poll.register(wake_r, select.POLLIN)
    if segments.created >= 0:
        poll.register(segments.created, select.POLLIN)
    limits: Limits = request["limits"]
    check_at = time.monotonic() + _CHECK_S
    while True:
        _reap(lifeline, child)
        if time.monotonic() >= check_at:
            pids = descendants(os.getpid())
            segments.note(pids)
            _trim_log(request)
            limits = _enforce(lifeline, limits, request["limit_options"], pids)
            check_at = time.monotonic() + _CHECK_S
        ready = [fd for fd, _ in poll.poll(max(0.0, check_at - time.monotonic()) * 1000)]
        if wake_r in ready:
            os.read(wake_r, 4096)
        if segments.created in ready:
            os.read(segments.created, 4096)
            check_at = min(check_at, time.monotonic() + _MAPPING_S)
        if lifeline.fileno() in ready:
            try:
                frame = lifeline.pop()
            except (PeerClosed, ProtocolViolation):
                return
            if frame is not None and frame.get("op") == "end":
                return


def _watch_created_segments() -> int:
    """Return a descriptor that becomes readable when a file is created in /dev/shm (inotify(7)), or
    -1 if the kernel has none left."""
    libc = ctypes.CDLL(None)
    fd = int(libc.inotify_init1(_IN_CLOEXEC | _IN_NONBLOCK))
    if fd >= 0:
        libc.inotify_add_watch(fd, b"/dev/shm", _IN_CREATE)
    return fd


def _trim_log(request: Frame) -> None:
    trim(request["log"], request["limits"].get("log", float("inf")), request["limit_options"])


def _enforce(
    lifeline: FrameSocket, limits: Limits, options: OptionNames, pids: list[int]
) -> Limits:
    """Check the limits once.

    Returns the limits to check from now on: none after one was exceeded.
    """
    exceeded = breach(pids, limits, options)
    if exceeded is None:
        return limits
    lifeline.send({"event": "limit", **exceeded._asdict()})
    _kill_at_once()
    return {}


def _kill_at_once() -> None:
    """Stop all descendants until no new ones appear, then kill them.

    SIGKILL alone cannot keep up with processes that fork without end.
    """
    stopped: dict[int, int] = {}
    for _ in range(_STOP_ROUNDS):
        below = start_times(os.getpid())
        new = {pid: started for pid, started in below.items() if stopped.get(pid) != started}
        if not new:
            break
        _signal(new, signal.SIGSTOP)
        stopped.update(new)
    segments = mapped_shm(stopped, _OLDER_INODES)
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
            code = os.waitstatus_to_exitcode(status)
            lifeline.send({"event": "exit", "code": code})


def main() -> None:
    """Run the command ``sys.argv[4:]`` and exit with its status; SIGTERM, or the end of all writers
    of the pipe ``sys.argv[1]``, kills it. What it has started is killed then.

    ``sys.argv[2]``: seconds before that, 0 for any command but an agent: the nannies of its children
    end them in that time, or without limit if only the agent has ended. ``sys.argv[3]``: limit of
    the command's data in bytes, 0 for none.
    """
    lifeline, grace_s, data = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    os.set_inheritable(lifeline, False)
    status = supervise(lifeline, grace_s, lambda: _execute(sys.argv[4:], data))
    if status is not None and os.WIFSIGNALED(status):
        _end_by(os.WTERMSIG(status))
    os._exit(1 if status is None else os.WEXITSTATUS(status))


def supervise(lifeline: int, grace_s: float, child_main: Callable[[], int]) -> Optional[int]:
    """Run ``child_main`` in a child process, which exits with its result. Return the child's status
    (wait(2)), or None if it was killed: on SIGTERM, or when all writers of ``lifeline`` have ended.

    Everything that it has started is then killed as well. ``grace_s``: as in ``main``. All other
    descriptors of this process are closed.
    """
    become_subreaper()
    wake_r, wake_w = os.pipe()
    os.set_blocking(wake_w, False)
    signal.set_wakeup_fd(wake_w)
    for number in (signal.SIGCHLD, *_ENDING):
        signal.signal(number, lambda *_: None)
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, *_ENDING):
            signal.signal(number, signal.SIG_DFL)
        os.close(wake_r)
        os.close(wake_w)
        os._exit(child_main())
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in (lifeline, wake_r, wake_w):
            with suppress(OSError):  # the listing's own
                os.close(fd)  # or the end of the command would not be seen there
    status = _wait_for(child, lifeline, wake_r)
    if status is None:
        os.kill(child, signal.SIGKILL)  # not reaped, so its pid is its own
    if status is None or not grace_s or select.select([lifeline], [], [], 0)[0]:
        _wait_for_nannies(grace_s)
        end_descendants(trackers_s=_TRACKERS_S)
    return status


def _wait_for(child: int, lifeline: int, wake: int) -> Optional[int]:
    """Return the status of the child when it has ended; None if all must end."""
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    poll.register(wake, select.POLLIN)
    status = None
    while status is None:
        ready = [fd for fd, _ in poll.poll()]
        if lifeline in ready or (wake in ready and set(os.read(wake, 4096)) & set(_ENDING)):
            return None
        status = _reaped().get(child)
    return status


def _wait_for_nannies(seconds: float) -> None:
    """Wait until the nannies of an agent that has ended have ended, too, at most ``seconds``."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(map(_is_nanny, descendants(os.getpid()))):
        _reaped()
        time.sleep(0.02)


def _is_nanny(pid: int) -> bool:
    """Return whether a process is a fork of an agent, or was started to be a nanny."""
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as cmdline:
        return b"\0vllm_regress_target.agent\0" in cmdline.read()
    return False


def _end_by(number: int) -> None:
    """End this process by the signal that ended the command."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # SIGKILL has no handler
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _execute(command: list[str], data: int) -> int:
    """Replace this process with the command. If that fails, write why and return ``NOT_EXECUTED``."""
    try:
        if data:
            resource.setrlimit(resource.RLIMIT_DATA, (data, data))
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    return NOT_EXECUTED


def _reaped() -> dict[int, int]:
    """Reap what has ended; return the status of each process by pid."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = status
    return ended


def descendants(root: int) -> list[int]:
    """Return the pids of the descendants of ``root``, from /proc."""
    return list(start_times(root))


def start_times(root: int) -> dict[int, int]:
    """Return the pids of the descendants of ``root``, each with its start time in clock ticks since
    boot. Both together name one process."""
    children: dict[int, list[tuple[int, int]]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = stat_fields(int(entry))
            except OSError:
                continue
            if fields[0] not in (b"Z", b"X"):
                children.setdefault(int(fields[1]), []).append(
                    (int(entry), int(fields[_START_TIME]))
                )
    descendants: dict[int, int] = {}
    pending = [root]
    while pending:
        below = children.get(pending.pop(), [])
        descendants.update(below)
        pending.extend(pid for pid, _ in below)
    return descendants


def stat_fields(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat after the name, which may contain anything."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return stat.read().rpartition(b")")[2].split()


def end_descendants(trackers_s: float = 0.0) -> None:
    """Kill all descendants of this process and remove the shared-memory files that they had mapped.

    ``trackers_s``: seconds for Python's resource trackers, after all others, to remove what a
    process that has ended left behind: nobody else knows its names.
    """
    until = time.monotonic() + _SWEEP_S
    alone_since = math.inf
    segments: set[str] = set()
    while time.monotonic() < until:
        below = start_times(os.getpid())
        if not below:
            break
        segments |= mapped_shm(below, _OLDER_INODES)
        others = {pid: started for pid, started in below.items() if not _is_tracker(pid)}
        alone_since = math.inf if others else min(alone_since, time.monotonic())
        is_over = time.monotonic() >= alone_since + trackers_s or not trackers_s
        _signal(below if is_over else others, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)
    _unlink(segments)


def _is_tracker(pid: int) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as command:
        return b"multiprocessing.resource_tracker" in command.read()
    return False


def _signal(processes: dict[int, int], number: int) -> None:
    """Send a signal to processes, given as by ``start_times``.

    A pid that another process has by now is left alone.
    """
    for pid, started in processes.items():
        with suppress(OSError), held(pid) as descriptor:
            if int(stat_fields(pid)[_START_TIME]) != started:
                continue
            if descriptor is None:
                os.kill(pid, number)
            else:
                signal.pidfd_send_signal(descriptor, number)


@contextmanager
def held(pid: int) -> Iterator[Optional[int]]:
    """Open a descriptor that means the process even when its pid is given to another
    (pidfd_open(2)). None where the system has none to give."""
    descriptor = None
    if hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal"):
        with suppress(OSError):
            descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _unlink(paths: Iterable[str]) -> None:
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


class Segments:
    """Record of the shared-memory files that the child's processes use, so that they can be removed
    after these processes were killed.

    Only a process that has a file mapped or open shows who uses it, so the processes are read while
    they run. That is slow, so it is done only when /dev/shm has a file that was not there at the
    last two checks. A file is recorded with its inode, and removed only if the name still
    has that inode: somebody else may have created a file with the same name since.
    """

    def __init__(self, file: str) -> None:
        self.created = _watch_created_segments()
        self._file = file
        self._present: set[str] = set()  # files at the last check
        # Files at the last two checks. Each file is checked twice, because it is mapped a moment
        # after it was created.
        self._checked: set[str] = set()
        self._recorded: dict[str, int] = {}
        self._pids: set[int] = set()

    def note(self, pids: list[int]) -> None:
        """Record the files that the processes ``pids`` have mapped or open, if files were created
        in /dev/shm since the last two calls."""
        self._pids.update(pids)
        present = set(os.listdir("/dev/shm"))
        checked, self._checked, self._present = self._checked, present & self._present, present
        if present <= checked:
            return
        new = mapped_shm(pids, _OLDER_INODES, opened=True) - set(self._recorded)
        with suppress(OSError), open(self._file, "a") as file:
            for path in new:
                self._recorded[path] = os.stat(path).st_ino
                file.write(f"{self._recorded[path]} {path}\n")

    def remove(self) -> None:
        """Remove the recorded files that still exist. Call it when all processes have ended."""
        for path, number in self._recorded.items():
            with suppress(OSError):
                if os.stat(path).st_ino == number:
                    os.unlink(path)
        _unlink(
            os.path.join("/dev/shm", name)
            for name in os.listdir("/dev/shm")
            if self._is_orphaned_semaphore(name)
        )

    def _is_orphaned_semaphore(self, name: str) -> bool:
        """Return whether the file is a semaphore of Ray's compiled graphs whose creator was one of
        ours and has ended.

        Its name has the creator's pid. A creator that ends by an exception creates both semaphores
        again and exits before they can be recorded.
        """
        match = re.match(r"sem\.(?:hdr|obj)(\d+)-\d+$", name)
        return (
            match is not None
            and int(match[1]) in self._pids
            and not os.path.exists("/proc/" + match[1])
        )


def shm_inodes() -> set[int]:
    """Return the inodes of the files that are below /dev/shm now."""
    return {number for _, number in _shm_files()}


def mapped_shm(
    pids: Iterable[int], others: Container[int] = (), *, opened: bool = False
) -> set[str]:
    """Return the files below /dev/shm that any of the processes has mapped, without the inodes
    ``others``.

    With ``opened``, open files count, too: a process may end between creating a file and mapping
    it. Files are compared by inode, because glibc's sem_open maps a named semaphore under a
    temporary name and renames it afterwards.
    """
    inodes: set[int] = set()
    for pid in pids:
        with suppress(OSError), open(f"/proc/{pid}/maps") as maps:
            inodes |= {int(line.split(None, 5)[4]) for line in maps if "/dev/shm/" in line}
        if opened:
            inodes |= _opened_shm(pid)
    return (
        {path for path, number in _shm_files() if number in inodes and number not in others}
        if inodes
        else set()
    )


def _opened_shm(pid: int) -> set[int]:
    inodes: set[int] = set()
    with suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{fd}"
            with suppress(OSError):
                if os.readlink(path).startswith("/dev/shm/"):
                    inodes.add(os.stat(path).st_ino)
    return inodes


def _shm_files() -> Iterator[tuple[str, int]]:
    for folder, _, names in os.walk("/dev/shm"):
        for name in names:
            path = os.path.join(folder, name)
            with suppress(OSError):
                yield path, os.lstat(path).st_ino
