"""Lets stories happen to servers of one environment.

A server that a story leaves as it was is used for the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...engines.server import Server
from ...engines.session import Session
from ...engines.standalone import Engines
from ...errors import ChildError, Unsupported
from ...surveys.states.requests import DRAIN_S, paced
from ..finding import Problem
from .story import Story
from .story_run import HEALTH_S, StoryRun

_ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_HEALTH_CHECK_TIMEOUT": str(HEALTH_S)}
_OPTIONS: Mapping[str, Any] = {"enable_prompt_tokens_details": True}
_LORA: Mapping[str, Any] = {"enable_lora": True, "max_lora_rank": 8}
OPTIONAL: Mapping[str, Any] = {"enable_sleep_mode": True, "shutdown_timeout": DRAIN_S}
"""Engine arguments that not every release has."""


class StoryServers:
    """Runs stories, with one server at a time."""

    def __init__(self, session: Session, environment: str) -> None:
        self._engines = Engines(session, session.target(environment), user="fuzz lifecycle")
        self._servers: dict[int, Server] = {}

    def run(self, story: Story) -> list[Problem]:
        """Let a story happen to a server. Returns what is wrong with its history."""
        server = self._server(story.workers)
        try:
            problems = StoryRun(server).run(story)
        except ChildError as error:
            words = str(error.args[0]).partition("\n")[0][:300]
            problems = [Problem("the server is not there", words)]
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
        """Start a server with all of ``OPTIONAL`` that this vLLM has.

        What it lacks is refused before anything starts, so trying costs little.
        """
        for lacking in ((), *((name,) for name in OPTIONAL), tuple(OPTIONAL)):
            arguments = {name: OPTIONAL[name] for name in OPTIONAL if name not in lacking}
            spec = paced(
                extra={**_LORA, **arguments},
                server_options=_OPTIONS,
                env=_ENVIRONMENT,
                tensor_parallel_size=workers,
            )
            try:
                return self._engines(spec, front="serve")
            except Unsupported:
                if len(lacking) == len(OPTIONAL):
                    raise
        raise AssertionError("the last try raises")
