"""The warm agent: ``python -m vllm_regress_target.agent FD`` under the target interpreter.

It answers frames on the socket FD: ``warm`` (imports vLLM once), ``inspect`` (model classes) and ``fork`` (one nanny and one
child). It never starts an engine, CUDA or Ray in itself, so that forking stays sound; where it is not, children are spawned instead.
"""

import contextlib
import gc
import os
import platform
import signal
import socket
import subprocess
import sys
import traceback
from typing import Any, Callable, Dict, Iterator, List, Mapping, Set, Tuple

from . import calls, child, gpu, nanny
from .dialect import ray_ports
from .protocol import Frame, FrameSocket, PeerClosed


class _Exit(Exception):
    """Unwinds a forked process to ``main``; ``args[0]`` is its exit status."""


def main(argv: List[str]) -> int:
    socket_fd = int(argv[1])
    channel = FrameSocket(socket.socket(fileno=socket_fd))
    os.set_inheritable(socket_fd, False)
    if len(argv) > 2:  # a spawned nanny: FD of the channel, then of the lifeline
        request = channel.receive(timeout_s=30)
        return _attended(FrameSocket(socket.socket(fileno=int(argv[2]))), channel, request)
    nanny.become_subreaper()
    ray_ports.watch()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's to handle
    channel.send({"event": "ready", "pid": os.getpid(), "python": platform.python_version()})
    try:
        _serve(channel)
    except _Exit as leaving:
        return int(leaving.args[0])
    except PeerClosed:
        return 0
    return 0


def _serve(channel: FrameSocket) -> None:
    while True:
        request = channel.receive()
        handler = _OPERATIONS.get(str(request.get("op")))
        try:
            if handler is None:
                raise ValueError("unknown operation {!r}".format(request.get("op")))
            value, fds = handler(channel, request)
            channel.send({"ok": True, "value": value}, fds)
        except (_Exit, PeerClosed):
            raise
        except BaseException as error:
            channel.send(calls.failure(error))
            fds = []
        for fd in fds:
            os.close(fd)
        _collect_nannies()


Handled = Tuple[Any, List[int]]


def _warm(channel: FrameSocket, request: Frame) -> Handled:
    from .dialect import engines

    gc.disable()  # an import makes much and drops a hundredth: collecting meanwhile takes a quarter of its time, and a tenth afterwards
    try:
        with _noted() as names:
            engines.warm(request.get("fronts", []))
        _READ.update(names)
        gc.freeze()
    finally:
        gc.enable()
    found: Dict[str, Any] = {"threads": _threads(), "forkable": _threads() == 1, "refusal": engines.refusal()}
    if os.environ.get("VLLM_REGRESS_DEVICE") == "gpu":
        _UNSOUND.extend(filter(None, [gpu.why_not_to_fork()]))
        found["share"] = gpu.default_share()
    return {**found, "spawns": "; ".join(_UNSOUND)}, []


_UNSOUND: List[str] = []
"""Why children are spawned although the agent has one thread."""
_READ: Set[str] = set()
"""The variables that were looked at while vLLM was imported."""
_READ_NATIVELY = ("RAY_", "OMP_", "KMP_", "MKL_", "OPENBLAS_")
"""What libraries look at, unseen, when they are loaded."""


class _NotingEnviron(type(os.environ)):  # type: ignore[misc]
    """The environment, which notes what is looked at one by one."""

    noted: Set[str]

    def __getitem__(self, name: str) -> str:
        self.noted.add(name)
        return str(super().__getitem__(name))

    def copy(self) -> Dict[str, str]:
        return {name: super(_NotingEnviron, self).__getitem__(name) for name in self}


@contextlib.contextmanager
def _noted() -> Iterator[Set[str]]:
    """The names of variables that are looked at meanwhile."""
    plain = type(os.environ)
    os.environ.__class__ = _NotingEnviron
    names: Set[str] = set()
    os.environ.noted = names  # type: ignore[attr-defined]
    try:
        yield names
    finally:
        os.environ.__class__ = plain
        del os.environ.noted  # type: ignore[attr-defined]


def _read_already(variables: Mapping[str, str]) -> bool:
    """Whether another value of one of them has counted here: who wants this one must import vLLM itself. CUDA's are read after the fork."""
    return any(
        (name in _READ or (bool(_READ) and name.startswith(_READ_NATIVELY)))
        and not name.startswith("CUDA_")
        and os.environ.get(name) != value
        for name, value in variables.items()
    )


def _inspect(channel: FrameSocket, request: Frame) -> Handled:
    from . import inspecting

    if _threads() == 1 and not _UNSOUND:  # else children are spawned, and would learn nothing from this process
        inspecting.inspect_models(request["architectures"])
    return {}, []


def _warm_grammars(channel: FrameSocket, request: Frame) -> Handled:
    from .hosts import grammar

    found = grammar.warm(request["tokenizer"], request["backends"])
    gc.collect()
    gc.freeze()
    return {"installed": found}, []


def _fork(channel: FrameSocket, request: Frame) -> Handled:
    """Start a nanny and its child; reply with two descriptors: the child's channel and the nanny's lifeline."""
    ours_channel, theirs_channel = socket.socketpair()
    ours_lifeline, theirs_lifeline = socket.socketpair()
    spawn = (
        request.get("start_method") == "spawn"
        or _threads() > 1
        or bool(_UNSOUND)
        or _read_already(request.get("env", {}))
    )
    if spawn:
        pid = _spawn(request, theirs_channel, theirs_lifeline)
    else:
        _flush()
        pid = os.fork()
        if pid == 0:
            for end in (channel, ours_channel, ours_lifeline):
                end.close()
            raise _Exit(_attended(FrameSocket(theirs_lifeline), FrameSocket(theirs_channel), request))
    theirs_channel.close()
    theirs_lifeline.close()
    return {"nanny": pid, "start_method": "spawn" if spawn else "fork"}, [ours_channel.detach(), ours_lifeline.detach()]


def _spawn(request: Frame, channel: socket.socket, lifeline: socket.socket) -> int:
    fds = (channel.fileno(), lifeline.fileno())
    command = [sys.executable, "-m", "vllm_regress_target.agent", *map(str, fds)]
    with open(request["log"], "ab") as log:
        process = subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    _SPAWNED[process.pid] = process
    return process.pid


_SPAWNED: Dict[int, "subprocess.Popen[bytes]"] = {}


def _attended(lifeline: FrameSocket, channel: FrameSocket, request: Frame) -> int:
    return nanny.watch(lifeline, lambda: child.main(channel, request), {channel.fileno()}, request)


def _collect_nannies() -> None:
    """Reap what has ended: nannies, and what they left to this subreaper."""
    with contextlib.suppress(ChildProcessError):
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        while ended is not None:
            spawned = _SPAWNED.pop(ended.si_pid, None)
            if spawned is None or spawned.poll() is None:
                os.waitpid(ended.si_pid, 0)
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


_OPERATIONS: Dict[str, Callable[[FrameSocket, Frame], Handled]] = {
    "warm": _warm,
    "inspect": _inspect,
    "warm_grammars": _warm_grammars,
    "fork": _fork,
}


if __name__ == "__main__":
    status = 1
    try:
        status = main(sys.argv)
    except BaseException:
        traceback.print_exc()
    _flush()
    os._exit(status)
