"""The processes of an engine or server as a test sees them: which part of vLLM each of them is."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Literal

import psutil

from ..processes import process_tree
from ..target_site.vllm_regress_target.spawning import PROCESS_NAME as FORK_SERVER
from ..util.masking import mask

Role = Literal["server", "engine", "core", "worker", "coordinator", "helper"]
"""What a process is: the front process of a server or of an engine, an engine core, a worker, the coordinator of data-parallel engines, or a helper
of Python, torch or Ray."""
_TITLE = re.compile(r"(?:VLLM|ray)::\S+")
_ROLE_OF_TITLE: tuple[tuple[str, Role], ...] = (
    ("Coordinator", "coordinator"),
    ("Worker", "worker"),
    ("EngineCore", "core"),
    ("APIServer", "server"),
)
_MAX_COMMAND = 1000


@dataclasses.dataclass(frozen=True)
class ProcessInfo:
    """One process of an engine or server.

    ``name``: the title that vLLM gave it (``VLLM::EngineCore``); older versions give none, then it is the name of the program. ``command``: its
    command line, masked. ``alive``: whether it runs; a zombie does not.
    """

    pid: int
    role: Role
    name: str
    command: str
    alive: bool = True

    def ended(self) -> ProcessInfo:
        """Return the same process after its end."""
        return dataclasses.replace(self, alive=False)

    def __str__(self) -> str:
        return f"{self.role} {self.pid} ({self.name}{'' if self.alive else ', ended'})"


def list_processes(
    tree: Iterable[psutil.Process], front: int | None, front_role: Role, *, core_in_front: bool
) -> Mapping[psutil.Process, ProcessInfo]:
    """Describe the processes of ``tree``, in its order. ``front``: pid of the front process. ``core_in_front``: it runs the engine itself.

    The role comes from vLLM's title, and from the place below the front process where a version gives no titles.
    """
    listed: dict[psutil.Process, ProcessInfo] = {}
    above_core = {front}  # the front process; and the fork server, whose first child is the core
    for process in tree:
        try:
            name, parent, words = process.name(), process.ppid(), " ".join(process.cmdline()) or process.name()
        except psutil.Error:
            continue
        title = _TITLE.match(words)
        role = front_role if process.pid == front else _role_of_title(title[0] if title else "")
        if name == FORK_SERVER:
            above_core.add(process.pid)
        if role is None and process_tree.is_helper(process):
            role = "helper"
        elif role is None:
            role = "core" if parent in above_core and not core_in_front else "worker"
            if parent != front:
                above_core.discard(parent)
        listed[process] = ProcessInfo(process.pid, role, title[0] if title else name, mask(words)[:_MAX_COMMAND])
    return listed


def _role_of_title(title: str) -> Role | None:
    return next((role for text, role in _ROLE_OF_TITLE if text in title), None)
