"""The warm agent of one target interpreter, as the controller sees it: starts it, warms it, asks it for children."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import select
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import psutil

from ..environments.cache import bytecode_folder
from ..errors import ChildDied, DeadlineExceeded, Part, ProtocolError, RemoteError, UsageError
from ..target_site.vllm_regress_target.nanny import TAG
from ..target_site.vllm_regress_target.protocol import Frame, FrameSocket, FrameTimeout, PeerClosed, ProtocolViolation
from ..util.deadline import Deadline
from ..util.masking import mask, register_all, without_secrets
from ..util.paths import PACKAGE, writable_root
from ..util.rundir import RunDir
from . import dossier, family
from .child import Child

KEPT_LOGS = 100
"""Of that many children the logs are kept until the agent's end, of more only while they live."""
TARGET_SITE = PACKAGE / "target_site"
# Variables of the controller's own Python that would mislead another interpreter.
_NOT_INHERITED = (
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "PYTEST_CURRENT_TEST",
    "PYTHONSTARTUP",
    "PYTHONINSPECT",
    "PYTHONPYCACHEPREFIX",
    "PYTHONDONTWRITEBYTECODE",
)


class Agent:
    """Owns the agent process. ``environment`` are variables for the agent and so for all its children, ``limits`` what each child's family may use
    (as ``vllm_regress_target.limits`` reads them), ``about`` what the interpreter has installed, for dossiers."""

    def __init__(
        self,
        python: Path,
        run: RunDir,
        *,
        environment: Mapping[str, str] = MappingProxyType({}),
        name: str = "agent",
        limits: Mapping[str, float] = MappingProxyType({}),
        about: str = "",
    ) -> None:
        self.python = python
        self.run = run
        self.name = name
        self.warmed = False
        self.import_error: RemoteError | None = None
        self.refusal: str | None = None
        self.spawns = ""  # why its children are spawned whatever was asked for
        self.gpu_share = 0.9  # of a GPU, what an engine asks for that is told nothing
        self._environment = dict(environment)
        self._about = about
        self._limits = dict(limits)
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: FrameSocket | None = None
        self._numbers = itertools.count(1)
        self._inspected: set[str] = set()
        self._ended: collections.deque[tuple[Child, Path]] = collections.deque()
        self.log = run.logs / f"{name}.log"

    def start(self, deadline: Deadline) -> None:
        """Start the interpreter and wait for its first frame."""
        ours, theirs = socket.socketpair()
        command = [str(self.python), "-m", "vllm_regress_target.agent", str(theirs.fileno())]
        try:
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    command,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._child_environment(),
                    cwd=self.run.path,
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            raise UsageError(f"cannot start the interpreter {self.python}: {error.strerror or error}") from None
        finally:
            theirs.close()
        self._channel = FrameSocket(ours)
        self._receive(deadline, lambda frame: frame.get("event") == "ready")

    def warm(self, deadline: Deadline, *, fronts: Sequence[str]) -> None:
        """Import vLLM in the agent, once. An import error is kept and raised again by each child that needs vLLM."""
        if self.warmed:
            return
        try:
            found = self._request(deadline, op="warm", fronts=list(fronts))
            self.refusal, self.spawns = found["refusal"], found["spawns"]
            self.gpu_share = float(found.get("share", self.gpu_share))
        except RemoteError as error:
            self.import_error = error
        self.warmed = True

    def inspect(self, deadline: Deadline, *, architectures: Sequence[str]) -> None:
        """Let the warm agent learn what vLLM wants to know of model classes, each once, so that no child starts an interpreter for it."""
        new = [each for each in architectures if each not in self._inspected]
        if new and self.import_error is None:
            self._request(deadline, op="inspect", architectures=new)
            self._inspected.update(new)

    def warm_grammars(self, deadline: Deadline, *, tokenizer: Path, backends: Sequence[str]) -> tuple[str, ...]:
        """Set grammar backends up in the agent, without vLLM; the result are those that the interpreter has."""
        return tuple(
            self._request(deadline, op="warm_grammars", tokenizer=str(tokenizer), backends=list(backends))["installed"]
        )

    def fork(
        self,
        role: str,
        deadline: Deadline,
        *,
        environment: Mapping[str, str] = MappingProxyType({}),
        start_method: str = "fork",
        label: str = "",
    ) -> Child:
        """A new child process in the role ``probe``, ``grammar``, ``engine`` or ``server``, ready to be asked."""
        register_all(environment)
        number = next(self._numbers)
        name = f"{role} {number}{f' ({label})' if label else ''}"
        log = self.run.logs / f"{self.name}-{role}-{number}.log"
        where = self.run.path / f"{role}-{number}"
        where.mkdir(exist_ok=True)
        request = {
            "role": role,
            "log": str(log),
            "cwd": str(where),
            "env": dict(environment),
            "limits": self._limits,
            "start_method": start_method,
        }
        reply = self._request(deadline, op="fork", **request)
        assert self._channel is not None
        channel, lifeline = (FrameSocket(socket.socket(fileno=fd)) for fd in self._channel.take_fds(2))
        child = Child(
            name=name,
            nanny_pid=reply["nanny"],
            channel=channel,
            lifeline=lifeline,
            log=log,
            start_method=reply["start_method"],
            ray_dir=self.run.ray,
            about=self._about,
        )
        if reply["start_method"] == "spawn":
            channel.send(request)
        self._tidy(child, where)
        try:
            child.wait_ready(deadline)
        except BaseException:
            child.kill()
            raise
        return child

    def _tidy(self, child: Child, where: Path) -> None:
        """Note a new child; logs and folders of those that ended long ago go."""
        self._ended.append((child, where))
        for _ in range(len(self._ended) - KEPT_LOGS):
            oldest, folder = self._ended.popleft()
            if oldest.alive:
                self._ended.append((oldest, folder))
            else:
                oldest.log.unlink(missing_ok=True)
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End the agent and everything of this run below it."""
        if self._process is None:
            return
        for child, _ in self._ended:  # those that nobody has stopped
            child.kill()
        if self._channel is not None:
            self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(3.0)
        below = family.below(self._process.pid)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        family.end(below, grace_s=0.0)
        self._process = None

    def _child_environment(self) -> dict[str, str]:
        inherited = {
            n: v for n, v in without_secrets(os.environ).items() if n not in _NOT_INHERITED and not n.startswith("COV_")
        }
        return {
            # Two interpreters for nothing: a tokenizer pool's workers have a runtime environment, and Ray starts others for them.
            "RAY_prestart_worker_first_driver": "0",
            **inherited,
            "PYTHONPATH": str(TARGET_SITE),
            "PYTHONUNBUFFERED": "1",
            # OpenBLAS would start a thread when numpy is imported, and a process with threads cannot be forked soundly.
            "OPENBLAS_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "RAY_TMPDIR": str(self.run.path),
            "RAY_USAGE_STATS_ENABLED": "0",
            "TMPDIR": str(self.run.path),
            # What vLLM keeps of model classes and compiled graphs is not to mix with the user's own.
            "VLLM_CACHE_ROOT": str(writable_root() / "vllm"),
            TAG: self.run.tag,
            **self._bytecode(),
            **self._environment,
        }

    def _bytecode(self) -> dict[str, str]:
        """Compiled modules are written in environments of ours alone."""
        folder = bytecode_folder(self.python)
        return {"PYTHONDONTWRITEBYTECODE": "1"} if folder is None else {"PYTHONPYCACHEPREFIX": str(folder)}

    def _request(self, deadline: Deadline, **frame: object) -> Frame:
        if self._channel is None or not self.alive:
            raise ChildDied(
                f"{self.name} of {self.python} is not running", phase=deadline.phase, detail=dossier.log_tail(self.log)
            )
        try:
            self._channel.send(frame, timeout_s=deadline.left_s)
        except (PeerClosed, FrameTimeout) as error:
            raise self._lost(deadline, str(error)) from None
        reply = self._receive(deadline, lambda each: "ok" in each)
        if not reply["ok"]:
            kind, message = str(reply["type"]), mask(str(reply["message"]))
            raise RemoteError(
                f"{self.name} raised {kind.removeprefix('builtins.')}: {message}",
                phase=deadline.phase,
                detail=mask(str(reply["traceback"])),
                type_name=kind,
                parts=_parts(reply, f"{kind}: {message}"),
            )
        value = reply["value"]
        return value if isinstance(value, dict) else {}

    def _receive(self, deadline: Deadline, accept: Callable[[Frame], bool]) -> Frame:
        assert self._channel is not None
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        while True:
            try:
                frame = self._channel.pop()
            except PeerClosed:
                raise self._lost(deadline, "it ended") from None
            except ProtocolViolation as violation:
                self.stop()
                raise ProtocolError(f"{self.name} broke the protocol: {violation}", phase=deadline.phase) from None
            if frame is not None and accept(frame):
                return frame
            if frame is None and not poll.poll(deadline.left_s * 1000):
                below = family.below(self._process.pid) if self._process else []
                looked = dossier.compile_dossier(
                    title=f"{self.name} of {self.python}", processes=[*self._self(), *below], logs=[self.log]
                )
                tail = dossier.log_tail(self.log)
                self.stop()
                raise DeadlineExceeded(
                    f"{self.name} gave no answer within {deadline.allowed_s:g} s",
                    phase=deadline.phase,
                    detail=str(looked),
                    parts={Part.STACKS: looked.stack_text, Part.LOG: tail},
                )

    def _self(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            return [psutil.Process(self._process.pid)] if self._process else []
        return []

    def _lost(self, deadline: Deadline, why: str) -> ChildDied:
        status = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._process.wait(2.0)
        tail = dossier.log_tail(self.log)
        self.stop()
        return ChildDied(
            f"{self.name} of {self.python} died: {why} (exit status {status})",
            phase=deadline.phase,
            detail=tail,
            parts={Part.EXIT: f"exit status {status}", Part.LOG: tail},
        )


def _parts(reply: Frame, otherwise: str) -> dict[Part, str]:
    chain = reply.get("chain") or [otherwise]
    return {
        Part.EXCEPTION: "\n".join(mask(str(each)) for each in chain),
        Part.TRACEBACK: mask(str(reply.get("traceback", ""))),
    }
