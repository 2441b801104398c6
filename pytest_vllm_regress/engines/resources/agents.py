"""The warm agents of one session: one for each target interpreter and device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...errors import BuildError
from ...gpus import compiled
from ...processes.agent_client import Agent
from ...util.deadline import DeadlineFor
from ...util.rundir import RunDir
from ..settings import Limits
from ..target import Target, named_interpreter
from .placement import Placement, kernels


class Agents:
    """Starts agents on first use and keeps them until ``stop``. An environment stays leased meanwhile, so that nothing evicts it.

    ``run``: returns the run directory. ``until``: end of the session's budget, in seconds of the monotonic clock (None: no limit).
    """

    def __init__(
        self,
        run: Callable[[], RunDir],
        gpus: Placement,
        limits: Limits,
        until: float | None,
        deadline_for: DeadlineFor,
        progress: Callable[[str], None],
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._run, self._gpus, self._progress, self._deadline = run, gpus, progress, deadline_for
        self._limits, self._until = limits, until
        self._environment = environment
        self._agents: dict[tuple[str, str], Agent] = {}
        self._failed: dict[str, BuildError] = {}
        self._leases = contextlib.ExitStack()

    @property
    def started(self) -> tuple[Agent, ...]:
        """The agents that were started."""
        return tuple(self._agents.values())

    def warm(self, target: Target) -> Agent:
        """Return the agent of a target, started and with vLLM imported."""
        agent = self._agents.get((target.name, target.device))
        if agent is None or not agent.alive:
            environment = {**self._environment, "VLLM_REGRESS_DEVICE": str(target.device)}
            if target.device == "gpu":
                environment |= self._gpus.agent_environment(target)
                self._leases.enter_context(compiled.hold(kernels(target)))
            agent = self._start(
                (target.name, target.device),
                target.python,
                environment=environment,
                limits=self._limits.as_request(self._until),
                limit_options=self._limits.options(),
                name=f"agent-{len(self._agents)}",
                about=target.describe(),
            )
            self._progress(f"importing vLLM in {target.name} ({target.device})")
            agent.warm(self._deadline("import", None), fronts=["serve"])
            if agent.spawns:
                self._progress(f"note: processes are spawned, not forked: {agent.spawns}")
        return agent

    def bare(self, name: str, limits: Mapping[str, float], limit_options: Mapping[str, str]) -> Agent:
        """Return an agent that does not import vLLM. ``limits`` replace the session's; ``limit_options`` name the options that set them."""
        key = (name, f"bare {sorted(limits.items())}")
        agent = self._agents.get(key)
        if agent is None or not agent.alive:
            agent = self._start(
                key,
                self.interpreter(name),
                limits={**self._limits.as_request(self._until), **limits},
                limit_options={**self._limits.options(), **limit_options},
                name=f"bare-{len(self._agents)}",
            )
        return agent

    def interpreter(self, name: str) -> Path:
        """Return the interpreter of an environment, which is built where it must be. An environment that cannot be built is tried only once."""
        if name in self._failed:
            raise self._failed[name].with_traceback(None)  # without it, the traceback would grow with every test
        if python := named_interpreter(name):
            return python
        from ...environments.cache import EnvironmentCache
        from ...environments.names import resolve

        try:
            return self._leases.enter_context(EnvironmentCache().lease(resolve(name), progress=self._progress))
        except BuildError as error:
            self._failed[name] = error
            raise

    def stop(self) -> None:
        """Stop every agent and release the environments."""
        for agent in self._agents.values():
            agent.stop()
        self._agents.clear()
        self._leases.close()

    def _start(self, key: tuple[str, str], python: Path, **facts: Any) -> Agent:
        agent = Agent(python, self._run(), **facts)
        agent.start(self._deadline("import", None))
        self._agents[key] = agent
        return agent
