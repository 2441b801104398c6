"""What engines and servers have in common: the loan to a test, and their processes: which part of
vLLM each of them is, signals, exit codes and the log."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import psutil

from ..errors import HeldRequests, UsageError
from ..target_site.vllm_regress_target.spawning import PROCESS_NAME as FORK_SERVER
from ..util.deadline import DeadlineFor
from ..util.files import peek
from ..util.masking import mask
from .held import HeldReader
from .inputs.script import ScriptWatch
from .processes import process_tree
from .processes.child import Child, Loan
from .spec import EngineSpec, Front

Role = Literal["server", "engine", "core", "worker", "coordinator", "helper"]
"""What a process is: the front process of a server or of an engine, an engine core, a worker, the
coordinator of data-parallel engines, or a helper
of Python, torch or Ray."""
_TITLE = re.compile(r"(?:VLLM|ray)::\S+")
_ROLE_OF_TITLE: tuple[tuple[str, Role], ...] = (
    ("Coordinator", "coordinator"),
    ("Worker", "worker"),
    ("EngineCore_TP", "worker"),  # 0.10.1 appends a worker's rank to the title of its core
    ("EngineCore_PP", "worker"),
    ("EngineCore", "core"),
    ("APIServer", "server"),
)
_RANK = re.compile(r"_DP(\d+)")
_LOG_PREFIX = re.compile(r"\(([A-Za-z]\w*) pid=(\d{1,9})\)")
_MAX_COMMAND = 1000
_MAX_LOG_BYTES = 1024 * 1024
"""Every process logs something while it starts."""


@dataclass(frozen=True)
class ProcessInfo:
    """One process of an engine or server.

    ``name``: the title that vLLM gave it (``VLLM::EngineCore``), else its name in vLLM's log
    (``EngineCore``); older versions give neither, then it
    is the name of the program. ``command``: its command line, masked. ``alive``: whether it runs; a
    zombie does not. ``rank``: the data-parallel rank of a core or worker, which the title or the
    log tells; None without data parallelism, and where a version gives neither.
    """

    pid: int
    role: Role
    name: str
    command: str
    alive: bool = True
    rank: int | None = None

    def ended(self) -> ProcessInfo:
        """Return the same process after its end."""
        return replace(self, alive=False)

    def __str__(self) -> str:
        return f"{self.role} {self.pid} ({self.name}{'' if self.alive else ', ended'})"


def list_processes(
    tree: Iterable[psutil.Process],
    front: int | None,
    front_role: Role,
    *,
    core_in_front: bool,
    logged: Mapping[int, str] = MappingProxyType({}),
) -> Mapping[psutil.Process, ProcessInfo]:
    """Describe the processes of ``tree``, in its order. ``front``: pid of the front process.
    ``core_in_front``: it runs the engine itself.

    The role comes from vLLM's title; where a process has none, from its name in vLLM's log
    (``logged``, by pid), and where a version gives neither, from the place below the front process.
    """
    listed: dict[psutil.Process, ProcessInfo] = {}
    above_core = {front}  # the front process; and the fork server, whose first child is the core
    starters = {front}
    seen = [_Seen.of(process, logged) for process in tree]
    titled = any(
        process is not None and _role_of_title(process.title) == "core" for process in seen
    )
    for process in filter(None, seen):
        role = front_role if process.pid == front else _role_of_title(process.title)
        if process.name == FORK_SERVER:
            above_core.add(process.pid)
            starters.add(process.pid)
        if role is None and process_tree.is_helper(process.process):
            role = "helper"
        elif (
            role is None and titled
        ):  # the core has told which it is; what the front process starts beside it is an API server
            role = "server" if process.parent in starters else "worker"
        elif role is None:
            role = "core" if process.parent in above_core and not core_in_front else "worker"
            if process.parent != front:
                above_core.discard(process.parent)
        listed[process.process] = process.info(role)
    return listed


def names_in_log(log: Path) -> Mapping[int, str]:
    """Return the names of processes by pid, from the beginning of vLLM's log.

    Since 0.10, lines start with ``(EngineCore_DP1 pid=12)``.
    """
    start = peek(log, _MAX_LOG_BYTES)
    return {int(pid): name for name, pid in _LOG_PREFIX.findall(start)}


@dataclass(frozen=True)
class _Seen:
    """A process as it was read, once."""

    process: psutil.Process
    pid: int
    name: str
    parent: int
    command: str
    title: str
    """The title that vLLM gave the process, else its name in vLLM's log, else empty."""

    @classmethod
    def of(cls, process: psutil.Process, logged: Mapping[int, str]) -> _Seen | None:
        """Read a process; None if it has ended."""
        try:
            name, command = process_tree.command_of(process)
            match = _TITLE.match(command)
            title = match[0] if match else logged.get(process.pid, "")
            return cls(process, process.pid, name, process.ppid(), command, title)
        except psutil.Error:
            return None

    def info(self, role: Role) -> ProcessInfo:
        """Describe the process in its role."""
        rank = _RANK.search(self.title)
        command = mask(self.command)[:_MAX_COMMAND]
        return ProcessInfo(
            self.pid, role, self.title or self.name, command, rank=int(rank[1]) if rank else None
        )


def _role_of_title(title: str) -> Role | None:
    return next((role for text, role in _ROLE_OF_TITLE if text in title), None)


SCHEMA_KEYS = (
    "structured_outputs",
    "guided_decoding",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "response_format",
)
"""Names of structured output in sampling parameters and HTTP bodies, in all versions of vLLM."""


@dataclass
class SchemaFilter:
    """Structured output in requests: noticed, and removed when the harness tries a smaller request.

    ``used``: a request had a schema. ``drop``: remove schemas from requests."""

    drop: bool = False
    used: bool = False

    def apply(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sampling parameters or HTTP body to send."""
        self.used |= any(key in request for key in SCHEMA_KEYS)
        return {
            key: value for key, value in request.items() if not (self.drop and key in SCHEMA_KEYS)
        }


@dataclass(frozen=True)
class Launch:
    """What an engine or a server of ``spec`` is started with: its process, the request that starts
    it there, its scripts, the deadlines of its phases (``timeout``: that of the start), and who reads
    what it holds, if somebody does."""

    child: Child
    spec: EngineSpec
    deadline_for: DeadlineFor
    scripts: ScriptWatch
    request: Mapping[str, Any] = field(default_factory=dict)
    timeout: float | None = None
    held: HeldReader | None = None

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Ask the process to start, and return its report."""
        deadline = self.deadline_for("start", self.timeout)
        return self.child.request(operation, deadline, spec=dict(self.request), **arguments)


class Running:
    """Base of engines and servers."""

    front: ClassVar[Front]
    front_role: ClassVar[Role]

    def __init__(self, launch: Launch) -> None:
        self.child = launch.child
        self.spec = launch.spec
        self.schemas = SchemaFilter()
        self.scripts = launch.scripts
        self._held = launch.held
        self._deadline = launch.deadline_for
        self._processes: dict[psutil.Process, ProcessInfo] = {}

    @contextmanager
    def lend(self, loan: Loan, schemas: SchemaFilter) -> Iterator[None]:
        """Lend it to a test:

        ``loan`` applies to its process, ``schemas`` to the schemas of its requests.
        """
        previous, self.schemas, self._processes = self.schemas, schemas, {}
        try:
            with self.child.lend(loan):
                yield
        finally:
            self.schemas = previous

    @property
    def answered(self) -> Sequence[str]:
        """The requests of this test's clients that were answered, with their status."""
        return ()

    def forget_scripts(self) -> None:
        """Forget what a test has scripted apart from its prompts."""

    @property
    def spent(self) -> bool:
        """Whether no other test may use it, because a test has sent it a signal or waited for its
        end."""
        return self.child.end_expected

    def held_requests(self) -> HeldRequests | None:
        """Return an error if the engine still holds requests that have ended. None if it holds none,
        is dead or spent, or is not checked (``--vllm-leftovers requests``)."""
        if self._held is None or self.spent or self.child.engine_is_dead or not self.child.alive:
            return None
        return self._held.violation()

    def processes(self) -> list[ProcessInfo]:
        """Return its processes, the front process first.

        Those that an earlier call of this test saw are listed after their end, too.
        """
        core_in_front = self._core_in_front()
        running = dict(
            list_processes(
                self.child.processes(),
                self.child.pid,
                self.front_role,
                core_in_front=core_in_front,
                logged=names_in_log(self.child.log),
            )
        )
        for process in running.keys() & self._processes.keys():
            if (
                self._processes[process].name == running[process].name
            ):  # an orphan without a title keeps the role that it had
                running[process] = self._processes[process]
        ended = {
            process: info.ended()
            for process, info in self._processes.items()
            if process not in running
        }
        self._processes = {**self._processes, **running, **ended}
        return list(self._processes.values())

    def signal(
        self, number: int, process: int | str | None = None, *, rank: int | None = None
    ) -> ProcessInfo:
        """Send a signal (``signal.SIGTERM``) to one process and return which one. Another test
        never gets this engine or server.

        ``process``: a pid, or a role (``"core"``, ``"worker"``, ...), which means the first process
        that has it (default: the front process).
        ``rank``: the data-parallel rank that the process must have.
        From now on the end of a process is no failure by itself. Raises ``ChildDied`` if the front
        process had ended before any signal, and
        ``UsageError`` for a number that is no signal and for a process that is not, or no longer,
        one of its own.
        """
        if number not in set(signal.Signals):
            raise UsageError(
                f"signal({number!r}): not a signal: use a name of the module signal, such as signal.SIGTERM"
            )
        if not self.child.end_expected:
            self.child.check_alive(self._deadline("request", None))
        selector = self.child.pid if process is None else process
        known = "; ".join(map(str, self.processes()))
        for target, info in self._processes.items():
            if info.alive and selector in (info.pid, info.role) and rank in (None, info.rank):
                self.child.expect_end()
                process_tree.send_signal([target], signal.Signals(number))
                return info
        wanted = (
            "this pid or role"
            if rank is None
            else f"this pid or role and the data-parallel rank {rank}"
        )
        raise UsageError(
            f"signal(..., {selector!r}): no running process has {wanted}; there are: {known}"
        )

    def wait_for_exit(self, timeout: float | None = None, *, all_processes: bool = False) -> int:
        """Wait until the front process has ended, and return its exit code; -15 means that SIGTERM
        killed it.

        ``timeout`` in seconds replaces that of the stop phase. ``all_processes``: wait until every
        other process has ended, too, except helpers. Raises ``DeadlineExceeded`` in phase stop,
        with the stacks of what still runs. Another test never gets this engine or server.
        """
        self.processes()
        self.child.expect_end()
        return self.child.wait_for_exit(
            self._deadline("stop", timeout), all_processes=all_processes
        )

    def log(self) -> str:
        """Return what all processes have logged since this test got the engine or server, also
        after their end. Secrets are masked.

        If it has become longer than ``--vllm-limit log``, a part is missing, and the test's verdict
        is INCONCLUSIVE.
        """
        return self.child.logs.whole_text()

    def _core_in_front(self) -> bool:
        """Return whether the front process runs the engine itself."""
        return False
