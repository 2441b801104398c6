"""The warm agent of one target interpreter, as the controller uses it: starts it, warms it, asks it
for children."""

from __future__ import annotations

import collections
import itertools
import logging
import os
import socket
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import psutil

from ...environments.cache import bytecode_folder
from ...errors import ChildDied, RemoteError, UsageError
from ...target_site.vllm_regress_target.limits import PYTEST_OPTIONS
from ...target_site.vllm_regress_target.nanny import TAG
from ...target_site.vllm_regress_target.protocol import Frame, FrameSocket
from ...util.deadline import Deadline
from ...util.files import remove_tree
from ...util.masking import register_all, without_secrets
from ...util.paths import PACKAGE, writable_root
from ...util.rundir import RunDir
from ...util.supervised import NOT_EXECUTED, Supervised
from . import logs, process_tree
from .channel import Channel
from .child import Child, Loan
from .child_processes import EngineProcesses
from .early_exit import Wait
from .failures import ChildFacts, ChildFailures
from .logs import LogWindow

_END_S = 3.0
"""Seconds for the agent to end by itself when its channel is closed."""
NANNIES_S = 10.0
"""Seconds for the nannies of its children when the agent has ended."""
KEPT_LOGS = 100
"""Logs of this many children are kept until the agent's end; beyond that, only those of children
that still run."""
TARGET_SITE = PACKAGE / "target_site"
_VARIABLES = tomllib.loads(Path(__file__).with_name("variables.toml").read_text("utf-8"))
_LOG = logging.getLogger("vllm_regress.processes")


def recorded_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the user's variables that reach a target and may change what vLLM does there."""
    return {
        name: value
        for name, value in sorted(_inherited(environ).items())
        if name.startswith(tuple(_VARIABLES["recorded"]))
        and not name.startswith("VLLM_REGRESS_")
        and name not in _VARIABLES["always"]
    }


def _inherited(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in without_secrets(environ).items()
        if name not in _VARIABLES["not_inherited"] and not name.startswith("COV_")
    }


class AgentProcess(Protocol):
    """The nanny of an agent. ``pid``: its process id. ``poll`` returns its exit status, None while it
    runs."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait_for_end(self, seconds: float) -> None: ...

    def kill(self) -> None: ...


class _AgentNanny(Supervised):
    """The nanny of an agent that this process has started."""

    def wait_for_end(self, seconds: float) -> None:
        process = process_tree.find(self.pid)
        process_tree.wait_until_gone([process] if process else [], seconds)

    def kill(self) -> None:
        super().kill()
        self.wait()


class Agent:
    """The agent process of one interpreter, and what its children share.

    ``environment``: variables for the agent, and so for all its children; they replace those of
    ``inherited`` (default: this process's at the start). ``limits``: what the processes of each
    child may use, and
    ``limit_options``: the options that set these, for messages (as ``vllm_regress_target.limits``
    reads them). ``about``: what the interpreter has installed, for dossiers.
    """

    def __init__(
        self,
        python: Path,
        run: RunDir,
        *,
        environment: Mapping[str, str] = MappingProxyType({}),
        name: str = "agent",
        limits: Mapping[str, float] = MappingProxyType({}),
        limit_options: Mapping[str, str] = PYTEST_OPTIONS,
        about: str = "",
        inherited: Mapping[str, str] | None = None,
    ) -> None:
        self.python = python
        self.run = run
        self.name = name
        self.warmed = False
        self.import_error: RemoteError | None = None
        self.refusal: str | None = None
        self.spawns = ""  # why its children are spawned although fork was requested
        self.gpu_share = 0.9  # the share of a GPU that an engine takes by default
        self._environment = dict(environment)
        self._about = about
        self.limit = self.limit_name = ""  # an agent has no limits
        self._inherited = inherited
        self._limits, self._limit_options = dict(limits), dict(limit_options)
        self._process: AgentProcess | None = None  # the nanny of the agent
        self._pid: int | None = None
        self._channel: Channel | None = None
        self._numbers = itertools.count(1)
        self._inspected: set[str] = set()
        self._children: collections.deque[tuple[Child, Path]] = collections.deque()
        self.log = run.logs / f"{name}.log"
        self._failures = ChildFailures(
            ChildFacts(f"{name} of {python}", self.log, about=about),
            self,
            LogWindow(self.log),
            EngineProcesses(),
        )

    def start(self, deadline: Deadline) -> None:
        """Start the interpreter and wait for its first frame."""
        self.run.check()
        parent_end, child_end = socket.socketpair()
        command = [str(self.python), "-m", "vllm_regress_target.agent", str(child_end.fileno())]
        _LOG.info(
            "starting %s: %s (log %s, deadline %g s)",
            self.name,
            " ".join(command),
            self.log,
            deadline.allowed_s,
        )
        try:
            with self.log.open("ab") as log:
                nanny = _AgentNanny(
                    command,
                    grace_s=NANNIES_S,
                    pass_fds=[child_end.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self.child_environment(),
                    cwd=self.run.path,
                )
        except OSError as error:
            parent_end.close()
            raise UsageError(
                f"cannot start the interpreter {self.python}: {error.strerror or error}"
            ) from None
        finally:
            child_end.close()
        try:
            self._begin(nanny, FrameSocket(parent_end), deadline)
        except ChildDied:
            if nanny.returncode == NOT_EXECUTED:
                why = logs.log_tail(self.log).strip()
                raise UsageError(f"cannot start the interpreter {why}") from None
            raise

    def _begin(self, process: AgentProcess, channel: FrameSocket, deadline: Deadline) -> None:
        """Use ``process`` and ``channel``, and wait until the agent says that it is ready."""
        self._process, self._channel = process, Channel(channel)
        ready = self._channel.receive(
            Wait(deadline, self._failures), lambda frame: frame.get("event") == "ready"
        )
        self._pid = int(ready["pid"])

    def warm(self, deadline: Deadline) -> None:
        """Import vLLM in the agent, once.

        An import error is kept and raised again by each child that needs vLLM.
        """
        if self.warmed:
            return
        try:
            report = self._request(deadline, op="warm")
            self.refusal, self.spawns = report["refusal"], report["spawns"]
            self.gpu_share = float(report.get("share", self.gpu_share))
        except RemoteError as error:
            self.import_error = error
        self.warmed = True

    def inspect(self, deadline: Deadline, *, architectures: Sequence[str]) -> None:
        """Have the warm agent inspect model classes as vLLM does, each once, so that no child
        starts an interpreter for it."""
        new = [name for name in architectures if name not in self._inspected]
        if new and self.import_error is None:
            self._request(deadline, op="inspect", architectures=new)
            self._inspected.update(new)

    def read_at_import(self, deadline: Deadline, variables: Mapping[str, str]) -> tuple[str, ...]:
        """Return the names of those ``variables`` of which the import of vLLM has read another
        value: a child with these is spawned."""
        return tuple(
            self._request(deadline, op="read_at_import", variables=dict(variables))["names"]
        )

    def warm_grammars(
        self, deadline: Deadline, *, tokenizer: Path, backends: Sequence[str]
    ) -> tuple[str, ...]:
        """Set up grammar backends in the agent, without vLLM.

        Return those that the interpreter has.
        """
        reply = self._request(
            deadline, op="warm_grammars", tokenizer=str(tokenizer), backends=list(backends)
        )
        return tuple(reply["installed"])

    def start_child(
        self,
        role: str,
        deadline: Deadline,
        *,
        environment: Mapping[str, str] = MappingProxyType({}),
        start_method: str = "fork",
        label: str = "",
        import_path: Sequence[str | Path] = (),
        loan: Loan | None = None,
    ) -> Child:
        """Start a child process in the role ``probe``, ``engine`` or ``server`` and
        wait until it answers.

        ``import_path``: folders from which the child and its descendants import modules, before
        those of the environment. ``loan``: the terms that apply while nobody has borrowed the
        child.
        """
        self.run.check()
        register_all(environment)
        number = next(self._numbers)
        name = f"{role} {number}{f' ({label})' if label else ''}"
        log = self.run.logs / f"{self.name}-{role}-{number}.log"
        folder = self.run.path / f"{self.name}-{role}-{number}"
        folder.mkdir(exist_ok=True)
        request = {
            "role": role,
            "log": str(log),
            "cwd": str(folder),
            "env": dict(environment),
            "import_path": list(map(str, import_path)),
            "limits": self._limits,
            "limit_options": self._limit_options,
            "start_method": start_method,
        }
        _LOG.info("starting %s from %s (%s, log %s)", name, self.name, start_method, log)
        reply, fds = self.fork(request, deadline)
        channel, lifeline = (FrameSocket(socket.socket(fileno=fd)) for fd in fds)
        facts = ChildFacts(name, log, self.run.ray, self._about)
        child = Child(
            facts, reply["nanny"], channel, lifeline, start_method=reply["start_method"], loan=loan
        )
        if reply["start_method"] == "spawn":
            channel.send(request)
        self._forget_oldest(child, folder)
        try:
            child.wait_ready(deadline)
        except BaseException:
            child.kill()
            raise
        return child

    def fork(self, request: Frame, deadline: Deadline) -> tuple[Frame, list[int]]:
        """Fork or spawn a child. Return the agent's reply, and the descriptors of the child's channel
        and of its nanny's lifeline."""
        reply = self._request(deadline, op="fork", **request)
        assert self._channel is not None
        return reply, self._channel.socket.take_fds(2)

    def _forget_oldest(self, child: Child, folder: Path) -> None:
        """Remember a new child; remove logs and folders of those that ended long ago."""
        self._children.append((child, folder))
        for _ in range(len(self._children) - KEPT_LOGS):
            oldest, its_folder = self._children.popleft()
            if oldest.alive:
                self._children.append((oldest, its_folder))
            else:
                oldest.log.unlink(missing_ok=True)
                remove_tree(its_folder)

    @property
    def pid(self) -> int | None:
        """The agent's process id, None before its start and after its end."""
        return None if self._process is None else self._pid

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the agent's nanny and of the agent itself."""
        return () if self._process is None else (self._process.pid, self._pid or 0)

    @property
    def has_children(self) -> bool:
        """Whether a child of the agent runs."""
        return any(child.alive for child, _ in self._children)

    @property
    def alive(self) -> bool:
        """Whether the agent process runs."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End the agent and everything of this run below it."""
        if self._process is None:
            return
        for child, _ in self._children:  # those not stopped yet
            child.kill()
        seconds = 0.0
        if self._channel is not None:
            self._channel.socket.close()
            # One that is at work, perhaps importing vLLM, would read that only afterwards.
            seconds = 0.0 if self._channel.interrupted else _END_S
        # Once it is reaped, its pid may belong to another process.
        ended = self._wait_for_end(seconds) is not None
        below = [] if ended else process_tree.descendants(self._process.pid)
        self._process.kill()
        process_tree.terminate(below, grace_s=0.0)
        self._process = None

    def _wait_for_end(self, seconds: float) -> int | None:
        """Return the exit status of the agent process; None if it still runs after ``seconds``."""
        if self._process is None:
            return None
        self._process.wait_for_end(seconds)
        return self._process.poll()

    def child_environment(self) -> dict[str, str]:
        """Return the environment variables of the agent and its children.

        Which of the user's variables reach the target? All but secrets and those that would redirect
        its Python; what the harness sets comes last.
        """
        whole = os.environ if self._inherited is None else self._inherited
        inherited = _inherited(whole)
        # Python writes bytecode files only in environments that we built.
        folder = bytecode_folder(self.python)
        bytecode = (
            {"PYTHONDONTWRITEBYTECODE": "1"}
            if folder is None
            else {"PYTHONPYCACHEPREFIX": str(folder)}
        )
        return {
            # Workers of a tokenizer pool have a runtime environment and need interpreters of their
            # own: those that Ray starts ahead go unused.
            "RAY_prestart_worker_first_driver": "0",
            **_ray_on_loopback(),
            **_caches(),
            **inherited,
            "PYTHONPATH": str(TARGET_SITE),
            **_VARIABLES["always"],
            # Tests look for lines of this level; more lines do no harm.
            "VLLM_LOGGING_LEVEL": "DEBUG" if whole.get("VLLM_LOGGING_LEVEL") == "DEBUG" else "INFO",
            # vLLM's caches of model classes and compiled graphs stay apart from the user's own.
            "VLLM_CACHE_ROOT": str(writable_root() / "vllm"),
            **bytecode,
            **self._environment,
            **self.own_variables(),
        }

    def own_variables(self) -> dict[str, str]:
        """Return the variables that differ between the agents of several workers. They may be changed
        after vLLM has been imported."""
        folder = str(self.run.path)
        return {"RAY_TMPDIR": folder, "TMPDIR": folder, TAG: self.run.tag}

    def _request(self, deadline: Deadline, **frame: Any) -> Frame:
        if self._channel is None or not self.alive:
            raise self._failures.died(deadline, "it is not running")
        value = self._channel.request(frame, Wait(deadline, self._failures))
        return value if isinstance(value, dict) else {}

    # What ``ChildFailures`` asks of the processes whose failures it reports.

    @property
    def exit_status(self) -> int | None:
        """The agent's exit status, negative for a signal; None while it runs."""
        return None if self._process is None else self._process.poll()

    def wait_for_exit_report(self) -> None:
        """Wait a moment for the end of the process, because its channel closes before that."""
        self._wait_for_end(2.0)

    def describe_end(self) -> str:
        """Return how the agent ended, in words."""
        status = self.exit_status
        return "its end was not seen" if status is None else process_tree.describe_exit_code(status)

    def kill(self, grace_s: float = 0.0) -> None:
        """End the agent and everything below it."""
        self.stop()

    def processes(self) -> list[psutil.Process]:
        """Return the agent and everything below it."""
        return process_tree.descendants(self._process.pid) if self._process and self.alive else []


def _ray_on_loopback() -> dict[str, str]:
    """Return the variables that make a Ray cluster of an engine's own listen on loopback only: Ray
    passes code, and by default listens everywhere.

    Ray's variable is meant for systems without clusters of several machines, so it is not set for a
    user who names a cluster.
    """
    return {} if os.environ.get("RAY_ADDRESS") else {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


def _caches() -> dict[str, str]:
    """Return variables that keep what the target's packages cache (outlines, Hugging Face) apart
    from the user's own. The user's settings precede.

    Models that the user has downloaded can still be read.
    """
    if "XDG_CACHE_HOME" in os.environ:
        return {}
    folders = {"XDG_CACHE_HOME": str(writable_root() / "target-caches")}
    models = Path("~/.cache/huggingface/hub").expanduser()
    if models.is_dir() and not {"HF_HOME", "HUGGINGFACE_HUB_CACHE"} & os.environ.keys():
        folders["HF_HUB_CACHE"] = str(models)
    return folders
