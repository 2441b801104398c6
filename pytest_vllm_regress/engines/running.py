"""What engines and servers have in common: the loan to a test, and their processes: signals, exit
codes and the log."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import psutil

from ..errors import UsageError
from ..util.deadline import DeadlineFor
from .inputs.script import ScriptWatch
from .process_list import ProcessInfo, Role, list_processes, names_in_log
from .processes import process_tree
from .processes.child import Child, Loan
from .spec import EngineSpec, Front

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
    it there, its scripts, and the deadlines of its phases (``timeout``: that of the start)."""

    child: Child
    spec: EngineSpec
    deadline_for: DeadlineFor
    scripts: ScriptWatch
    request: Mapping[str, Any] = field(default_factory=dict)
    timeout: float | None = None

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
    def spent(self) -> bool:
        """Whether no other test may use it, because a test has sent it a signal or waited for its
        end."""
        return self.child.end_expected

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
        after their end. Secrets are masked."""
        return self.child.logs.text(max_chars=None)

    def _core_in_front(self) -> bool:
        """Return whether the front process runs the engine itself."""
        return False
