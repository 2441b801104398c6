"""``vllm serve`` in a child process, on the loopback interface and with a random API key."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from ..errors import ChildDied, ChildError, Unsupported
from ..util import masking
from ..util.deadline import DeadlineFor
from .http.maintenance import MaintenanceRequests
from .http.openai_client import OpenAIClients
from .http.pooling import PoolingRequests
from .http.readiness import ReadinessRequests
from .http.text import TextRequests
from .http.transport import ServerReport
from .inputs.script import ScriptWatch
from .processes import process_tree
from .processes.child_handle import Child
from .processes.lifecycle import Leftover
from .resources.ports import HOST, PortLease
from .spec import EngineSpec

_log = logging.getLogger("vllm_regress.engines")

_UNSUPPORTED = re.compile(
    r"VLLM_USE_V1=1 is not supported with [^\n]+?(?=\.(?:[\s;]|$))|[\w -]+ is not supported on current platform"
)
"""Errors in the log of a server that ended because this vLLM supports something in V0 only, or not
on this platform."""


class Server(TextRequests, PoolingRequests, ReadinessRequests, MaintenanceRequests, OpenAIClients):
    """A running server. Tests get it from the fixture ``vllm_server``."""

    def engine_processes(self) -> list[psutil.Process]:
        """Return the engine's processes below the API server: the engine core first, then its
        workers, without multiprocessing's helpers."""
        return [
            process
            for process in self.child.processes()
            if process.pid != self.child.pid and not process_tree.is_helper(process)
        ]

    def stop(self, timeout: float | None = None) -> tuple[Leftover, ...]:
        """Send TERM and wait for vLLM's own shutdown.

        Returns what the server left behind, which has been removed.
        """
        self.client.close()
        self._close_openai()
        try:
            return self.child.stop(self._deadline("stop", timeout), by_signal=True)
        finally:
            self._port.release()


def start_server(
    child: Child,
    spec: EngineSpec,
    port: PortLease,
    request: Mapping[str, Any],
    deadline_for: DeadlineFor,
    scripts: ScriptWatch,
    timeout: float | None = None,
) -> Server:
    """Start a server in ``child`` and wait until it is ready. If that fails, the child is killed
    and the port released before the error is raised.

    A server with a command line of its own gets no key: its tests send requests without one.
    """
    key = masking.register(secrets.token_hex(16)) if spec.command_line is None else ""
    server = None
    try:
        plan = child.request(
            "serve",
            deadline_for("start", timeout),
            spec=dict(request),
            host=HOST,
            port=port.number,
            api_key=key,
        )
        started = ServerReport(
            tuple(plan["argv"]),
            tuple(plan["notes"]),
            Path(str(request["model_path"])),
            str(plan["sound_needs"]),
        )
        _log.info("%s runs %s", child.name, " ".join(started.argv))
        server = Server(child, spec, port, key, deadline_for, scripts, started)
        server.wait_ready(deadline_for("ready", timeout))
        child.adopt_engine()
    except BaseException as error:
        if isinstance(error, ChildError) and not error.detail:
            error.detail = child.dossier(f"{child.name} failed to become ready")
        if server is not None:
            server.client.close()
        child.kill()
        port.release()
        unsupported = (
            _UNSUPPORTED.search(str(error.args[0])) if isinstance(error, ChildDied) else None
        )
        if unsupported:
            raise Unsupported(unsupported.group(), refused_by="this vLLM") from error
        raise
    return server
