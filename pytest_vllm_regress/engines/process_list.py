"""The processes of an engine or server as a test sees them: which part of vLLM each of them is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import psutil

from ..target_site.vllm_regress_target.spawning import PROCESS_NAME as FORK_SERVER
from ..util.masking import mask
from .processes import process_tree

Role = Literal["server", "engine", "core", "worker", "coordinator", "helper"]
"""What a process is: the front process of a server or of an engine, an engine core, a worker, the
coordinator of data-parallel engines, or a helper
of Python, torch or Ray."""
_TITLE = re.compile(r"(?:VLLM|ray)::\S+")
_ROLE_OF_TITLE: tuple[tuple[str, Role], ...] = (
    ("Coordinator", "coordinator"),
    ("Worker", "worker"),
    ("EngineCore", "core"),
    ("APIServer", "server"),
)
_RANK = re.compile(r"_DP(\d+)")
_LOG_PREFIX = re.compile(rb"\(([A-Za-z]\w*) pid=(\d{1,9})\)")
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
    try:
        with log.open("rb") as file:
            start = file.read(_MAX_LOG_BYTES)
    except OSError:
        return {}
    return {int(pid): name.decode() for name, pid in _LOG_PREFIX.findall(start)}


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
            name = process.name()
            command = " ".join(process.cmdline()) or name
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
