"""The warm agents of one session: one for each target interpreter and device, and some with
variables that the import of vLLM reads."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..errors import BuildError, LimitExceeded
from ..util.deadline import DeadlineFor
from ..util.rundir import RunDir
from .gpus import compiled
from .placement import Placement, kernels
from .processes.agent import Agent
from .processes.shared_agents import AgentRefused, ForkedAgent
from .settings import Limits
from .target import Target, named_interpreter

_MAX_WITH_VARIABLES = 2
"""Agents with variables of their own that are kept at the same time: each takes as much memory as
vLLM with its modules."""

_LOG = logging.getLogger("vllm_regress.processes")
_NO_VARIABLES: frozenset[tuple[str, str]] = frozenset()


class Agents:
    """Starts agents on first use and keeps them until ``stop``. An environment stays leased
    meanwhile, so that nothing evicts it.

    ``run``: returns the run directory. The session's budget in ``limits`` begins now. ``environment``: variables of all agents, which replace those
    of ``inherited``. ``shared``: where to ask for a fork of an agent that has imported vLLM
    (``processes/shared_agents.py``); empty: nowhere.
    """

    def __init__(
        self,
        run: Callable[[], RunDir],
        gpus: Placement,
        limits: Limits,
        deadline_for: DeadlineFor,
        progress: Callable[[str], None],
        environment: Mapping[str, str] = MappingProxyType({}),
        inherited: Mapping[str, str] | None = None,
        shared: str = "",
    ) -> None:
        self._run, self._gpus, self._progress, self._deadline = run, gpus, progress, deadline_for
        self._limits = limits
        session_s = limits.session_s
        self._until = None if session_s is None else time.monotonic() + session_s
        self._environment, self._inherited, self._shared = environment, inherited, shared
        self._agents: dict[tuple[str, str, frozenset[tuple[str, str]]], Agent] = {}
        """By environment, device and variables of their own, the least recently used first."""
        self._numbers = itertools.count()
        self._failed: dict[str, BuildError] = {}
        self._refused: set[str] = set()
        self._leases = ExitStack()

    @property
    def started(self) -> tuple[Agent, ...]:
        """The agents that were started."""
        return tuple(self._agents.values())

    def check_budget(self) -> None:
        """Raise ``LimitExceeded`` when the session's budget is used up."""
        if self._until is not None and time.monotonic() > self._until:
            words = f"the session's budget of {self._limits.session_s:g} s is used up (--vllm-limit session): nothing more is started"
            raise LimitExceeded(words, phase="start")

    def warm(self, target: Target) -> Agent:
        """Return the agent of a target, started and with vLLM imported."""
        self.check_budget()
        key = (target.name, target.device, _NO_VARIABLES)
        agent = self._agents.get(key)
        if agent is None or not agent.alive:
            if target.device == "gpu":
                self._leases.enter_context(compiled.hold(kernels(target)))
            agent = self._agents[key] = self._warmed(target, {})
            if agent.spawns:
                self._progress(f"note: processes are spawned, not forked: {agent.spawns}")
        return agent

    def forking(self, target: Target, variables: Mapping[str, str]) -> Agent:
        """Return an agent that can fork a child with ``variables``: the warm agent of the target,
        or one that has imported vLLM with those of them
        that the import reads. Where none can be kept, it is the warm agent, which spawns the
        child."""
        agent = self.warm(target)
        names = (
            () if agent.spawns else agent.read_at_import(self._deadline("start", None), variables)
        )
        if not names:
            return agent
        own = {name: variables[name] for name in names}
        key = (target.name, target.device, frozenset(own.items()))
        kept = self._agents.pop(key, None)
        if kept is None or not kept.alive:
            if not self._make_room():
                return agent
            kept = self._warmed(target, own)
        self._agents[key] = kept
        return agent if kept.import_error else kept

    def _make_room(self) -> bool:
        """Return whether one more agent with variables may start.

        The one that was unused for longest, and has no child, ends for it.
        """
        with_variables = [key for key in self._agents if key[2]]
        if len(with_variables) < _MAX_WITH_VARIABLES:
            return True
        idle = next((key for key in with_variables if not self._agents[key].has_children), None)
        if idle is not None:
            self._agents.pop(idle).stop()
        return idle is not None

    def _warmed(self, target: Target, variables: Mapping[str, str]) -> Agent:
        """Return a new agent of a target that has imported vLLM with ``variables``."""
        environment = {**self._environment, **variables, "VLLM_REGRESS_DEVICE": str(target.device)}
        if target.device == "gpu":
            environment |= self._gpus.agent_environment(target)
        facts: dict[str, Any] = {
            "environment": environment,
            "limits": self._limits.as_request(self._until),
            "limit_options": self._limits.options(),
            "name": f"agent-{next(self._numbers)}",
            "about": target.describe(),
        }
        forked = self._forked(target, facts)
        agent = forked or self._start(target.python, **facts)
        with_them = f" with {', '.join(sorted(variables))}" if variables else ""
        if forked is None:
            self._progress(f"importing vLLM in {target.name} ({target.device}){with_them}")
        try:
            agent.warm(self._deadline("import", None))
        except BaseException:
            agent.stop()
            raise
        return agent

    def _forked(self, target: Target, facts: Mapping[str, Any]) -> Agent | None:
        """Return an agent forked from a shared import; None where that is impossible. Agents on GPUs
        are not shared, because each session leases its own."""
        if not self._shared or target.device in ("gpu", "none") or target.name in self._refused:
            return None
        agent = ForkedAgent(
            self._shared, target.python, self._run(), inherited=self._inherited, **facts
        )
        try:
            agent.start(self._deadline("import", None))
        except AgentRefused as why:
            _LOG.info("%s: no shared agent: %s", target.name, why)
            self._refused.add(target.name)
            return None
        return agent

    def bare(
        self, name: str, limits: Mapping[str, float], limit_options: Mapping[str, str]
    ) -> Agent:
        """Return an agent that does not import vLLM.

        ``limits`` replace the session's; ``limit_options`` name the options that set them.
        """
        self.check_budget()
        key = (name, f"bare {sorted(limits.items())}", _NO_VARIABLES)
        agent = self._agents.get(key)
        if agent is None or not agent.alive:
            agent = self._agents[key] = self._start(
                self.interpreter(name),
                limits={**self._limits.as_request(self._until), **limits},
                limit_options={**self._limits.options(), **limit_options},
                name=f"bare-{next(self._numbers)}",
            )
        return agent

    def interpreter(self, name: str) -> Path:
        """Return the interpreter of an environment, which is built where it must be.

        An environment that cannot be built is tried only once.
        """
        if name in self._failed:
            raise self._failed[name].with_traceback(
                None
            )  # without it, the traceback would grow with every test
        if python := named_interpreter(name):
            return python
        from ..environments.cache import EnvironmentCache
        from ..environments.downloads import downloads
        from ..environments.names import resolve

        try:
            recipe = resolve(name)
            if needed := downloads([name]):
                self._progress(str(needed))
            return self._leases.enter_context(
                EnvironmentCache().lease(recipe, progress=self._progress)
            )
        except BuildError as error:
            self._failed[name] = error
            raise

    def stop(self) -> None:
        """Stop every agent and release the environments."""
        self.end_processes()
        self._leases.close()

    def end_processes(self) -> None:
        """Stop every agent. The environments stay leased."""
        for agent in self.started:
            agent.stop()
        self._agents.clear()

    def _start(self, python: Path, **facts: Any) -> Agent:
        agent = Agent(python, self._run(), inherited=self._inherited, **facts)
        agent.start(self._deadline("import", None))
        return agent
