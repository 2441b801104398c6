"""The warm agent: ``python -m vllm_regress_target.agent FD`` in the target interpreter.

It answers frames on the socket FD: ``warm`` (import vLLM once), ``inspect`` (model classes),
``warm_grammars``, ``read_at_import`` (which of some variables the import has read with another
value) and ``fork`` (start one nanny and one child). It never starts an engine, CUDA or Ray in its
own process, so that forking stays safe. A child in the role ``agent`` is an agent for another
controller, which need not import vLLM again.

A child is forked, unless one of these holds (``_start_child``); then its nanny is a new interpreter
that imports vLLM itself:

- the request asks for it (``--vllm-start-method=spawn``);
- the agent has more than one thread, or importing vLLM initialized CUDA (the run says so once:
  ``_warm`` returns the reason in ``spawns``);
- the child gets another value for a variable that was read while vLLM was imported here
  (``_read_before``). A variable with a prefix of
  ``_READ_BY_LIBRARIES`` counts as read.
"""

import gc
import os
import platform
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Callable, NoReturn

from . import calls, child, nanny, reached, spawning
from .dialect import gpu, ray_clusters
from .protocol import AGENT, Frame, FrameSocket, PeerClosed


class _Exit(Exception):
    """Unwinds the stack of a forked process to ``main``. ``args[0]`` is the exit status."""


def main(argv: list[str]) -> int:
    socket_fd = int(argv[1])
    channel = FrameSocket(socket.socket(fileno=socket_fd))
    os.set_inheritable(socket_fd, False)
    reached.install()
    if len(argv) > 2:  # a spawned nanny: the descriptors of the channel and of the lifeline
        request = channel.receive(timeout_s=30)
        return _run_nanny(FrameSocket(socket.socket(fileno=int(argv[2]))), channel, request)
    nanny.become_subreaper()
    ray_clusters.watch()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller handles Ctrl-C
    channel.send({"event": "ready", "pid": os.getpid(), "python": platform.python_version()})
    try:
        _serve(channel)
    except _Exit as error:
        return int(error.args[0])
    except PeerClosed:
        return 0


def _serve(channel: FrameSocket) -> NoReturn:
    while True:
        request = channel.receive()
        operation, fds = request.get("op"), list[int]()
        try:
            if operation == "fork":
                value, fds = _start_child(channel, request)
            elif operation in _OPERATIONS:
                value = _OPERATIONS[operation](request)
            else:
                raise ValueError(f"unknown operation {operation!r}")
            channel.send({"ok": True, "value": value}, fds)
        except (_Exit, PeerClosed):
            raise
        except BaseException as error:
            channel.send(calls.failure(error))
            fds = []
        for fd in fds:
            os.close(fd)
        _reap_children()


def _warm(request: Frame) -> Frame:
    from .dialect import engines

    if _REPORT:  # by the agent that this one was forked from
        return _REPORT
    gc.disable()  # garbage collection takes a quarter of the import's time, and frees a hundredth of what the import makes
    try:
        with _recorded_variables() as names:
            engines.warm()
        _VARIABLES_READ.update(names)
        gc.freeze()
    finally:
        gc.enable()
    facts: dict[str, Any] = {"refusal": engines.unsupported_reason()}
    if os.environ.get("VLLM_REGRESS_DEVICE") == "gpu":
        why = gpu.why_not_to_fork()
        if why is None:
            _HARMLESS_THREADS.update(gpu.driver_threads())
        else:
            _SPAWN_REASONS.append(why)
        facts["share"] = gpu.default_share()
    _REPORT.update(facts, spawns="; ".join(_SPAWN_REASONS) or _why_threads())
    return _REPORT


_REPORT: Frame = {}
"""What ``_warm`` has found out."""
_SPAWN_REASONS: list[str] = []
"""Why children are spawned although the agent has a single thread."""
_HARMLESS_THREADS: set[str] = set()
"""Ids of threads despite which a fork of this process works."""
_VARIABLES_READ: set[str] = set()
"""Names of the environment variables that were read while vLLM was imported."""
_READ_BY_LIBRARIES = ("RAY_", "OMP_", "KMP_", "MKL_", "OPENBLAS_")
"""Prefixes of variables that native libraries read when they are loaded.

``os.environ`` does not see these reads.
"""


class _RecordingEnviron(type(os.environ)):  # type: ignore[misc]
    """``os.environ`` that records the names of the variables that are read."""

    recorded: set[str]

    def __getitem__(self, name: str) -> str:
        self.recorded.add(name)
        return str(super().__getitem__(name))

    def copy(self) -> dict[str, str]:
        return {name: super(_RecordingEnviron, self).__getitem__(name) for name in self}


@contextmanager
def _recorded_variables() -> Iterator[set[str]]:
    """Record the names of the variables that are read in the block."""
    original = type(os.environ)
    os.environ.__class__ = _RecordingEnviron
    names: set[str] = set()
    os.environ.recorded = names  # type: ignore[attr-defined]
    try:
        yield names
    finally:
        os.environ.__class__ = original
        del os.environ.recorded  # type: ignore[attr-defined]


def _read_before(variables: Mapping[str, str]) -> list[str]:
    """Return the names of those ``variables`` of which the import of vLLM here has read another
    value. CUDA reads its variables after the fork."""
    return [
        name
        for name, value in variables.items()
        if (
            name in _VARIABLES_READ
            or (bool(_VARIABLES_READ) and name.startswith(_READ_BY_LIBRARIES))
        )
        and not name.startswith("CUDA_")
        and os.environ.get(name) != value
    ]


def _read_at_import(request: Frame) -> Frame:
    return {"names": _read_before(request["variables"])}


def _inspect(request: Frame) -> Frame:
    if _threads() == 1 and not _SPAWN_REASONS:  # spawned children would not inherit the result
        _inspect_models(request["architectures"])
    return {}


# vLLM inspects a model class in a new interpreter, so that the model's module cannot initialize CUDA
# in its own process. That interpreter imports vLLM again. A fork gives the same protection and has
# imported vLLM already. The result is stored in vLLM's own cache in this process.


def _inspect_models(architectures: list[str]) -> None:
    """Fill vLLM's cache for these model classes.

    Failures are ignored here; an engine that needs the class reports them.
    """
    with suppress(Exception):
        from vllm.model_executor.models import registry

        original = registry._run_in_subprocess
        registry._run_in_subprocess = _inspect_in_fork
        try:
            for architecture in architectures:
                model = registry.ModelRegistry.models.get(architecture)
                if model is not None:
                    registry._try_inspect_model_cls(architecture, model)
        finally:
            registry._run_in_subprocess = original


def _inspect_in_fork(function: Callable[[], Any]) -> Any:
    def inspect() -> Any:
        with suppress(ImportError):  # as vLLM's own subprocess does
            from vllm.plugins import load_general_plugins

            load_general_plugins()
        return function()

    return spawning.call_in_fork(inspect)


def _warm_grammars(request: Frame) -> Frame:
    from .hosts import grammar

    installed = grammar.warm(request["tokenizer"], request["backends"])
    gc.collect()
    gc.freeze()
    return {"installed": installed}


def _start_child(channel: FrameSocket, request: Frame) -> tuple[Frame, list[int]]:
    """Fork or spawn a nanny, which starts its child.

    Reply with two descriptors: the child's channel and the nanny's lifeline.
    """
    channel_end, child_channel = socket.socketpair()
    lifeline_end, nanny_lifeline = socket.socketpair()
    spawn = (
        request.get("start_method") == "spawn"
        or _threads() > 1
        or bool(_SPAWN_REASONS)
        or bool(_read_before(request.get("env", {})))
    )
    if spawn and request["role"] == AGENT:
        raise ValueError("an agent can only be forked")
    if spawn:
        pid = _spawn_nanny(request, child_channel, nanny_lifeline)
    else:
        _flush()
        pid = os.fork()
        if pid == 0:
            for end in (channel, channel_end, lifeline_end):
                end.close()
            raise _Exit(
                _run_nanny(FrameSocket(nanny_lifeline), FrameSocket(child_channel), request)
            )
    child_channel.close()
    nanny_lifeline.close()
    return {"nanny": pid, "start_method": "spawn" if spawn else "fork"}, [
        channel_end.detach(),
        lifeline_end.detach(),
    ]


def _spawn_nanny(request: Frame, channel: socket.socket, lifeline: socket.socket) -> int:
    fds = (channel.fileno(), lifeline.fileno())
    for fd in fds:
        os.set_inheritable(fd, True)
    command = [sys.executable, "-m", "vllm_regress_target.agent", *map(str, fds)]
    streams: Any = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    for stream in (1, 2):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        streams.append((os.POSIX_SPAWN_OPEN, stream, request["log"], flags, 0o600))
    return os.posix_spawn(sys.executable, command, os.environ, file_actions=streams)


def _run_nanny(lifeline: FrameSocket, channel: FrameSocket, request: Frame) -> int:
    """Become the nanny of a new child.

    Returns the exit status of this process, in the nanny and in the child.
    """
    if request["role"] == AGENT:
        return _run_nanny_of_agent(lifeline, channel, request)
    return nanny.watch(lifeline, lambda: child.main(channel, request), {channel.fileno()}, request)


def _run_nanny_of_agent(lifeline: FrameSocket, channel: FrameSocket, request: Frame) -> int:
    """Become the nanny of an agent, as ``nanny.main`` is one, and report the agent's end."""
    os.setsid()
    status = nanny.supervise(
        lifeline.fileno(), request["grace_s"], lambda: _be_agent(channel, request)
    )
    if status is not None:
        with suppress(PeerClosed):
            lifeline.send({"event": "exit", "code": os.waitstatus_to_exitcode(status)})
    return 0


def _be_agent(channel: FrameSocket, request: Frame) -> int:
    """Serve another controller, in its run directory and with its tag."""
    try:
        child.take_place(request)
        nanny.carry_tag(request["tag"])
        os.environ[nanny.TAG] = request["tag"]
        # Also variables that the import has set: torch's Inductor keeps its cache below TMPDIR.
        before = os.environ["TMPDIR"]
        for name, value in os.environ.items():
            if before in value:
                os.environ[name] = value.replace(before, request["cwd"])
        tempfile.tempdir = None
        nanny.become_subreaper()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        channel.send({"event": "ready", "pid": os.getpid()})
        _serve(channel)
    except PeerClosed:
        return 0
    except _Exit:
        raise
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        _flush()


def _reap_children() -> None:
    """Reap nannies that have ended, and orphans that this subreaper inherited from them."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _why_threads() -> str:
    """Return why children are spawned if the import has left threads behind; empty if there are
    none."""
    threads = _threads() - 1
    return (
        "importing vLLM started {} thread{}".format(threads, "s" * (threads > 1)) if threads else ""
    )


def _threads() -> int:
    return len(set(os.listdir("/proc/self/task")) - _HARMLESS_THREADS)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


_OPERATIONS: dict[str, Callable[[Frame], Frame]] = {
    "warm": _warm,
    "inspect": _inspect,
    "warm_grammars": _warm_grammars,
    "read_at_import": _read_at_import,
}


if __name__ == "__main__":
    status = 1
    try:
        status = main(sys.argv)
    except BaseException:
        traceback.print_exc()
    _flush()
    os._exit(status)
