"""One run of the harness: its run directory, target environments, agents and engines. Used by the plugin; knows nothing of pytest."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from packaging.version import InvalidVersion, Version

from ..checkpoints.forge import architectures_of, ensure_checkpoint
from ..checkpoints.kinds import KINDS, arguments_of, needed_by
from ..dialogue.script import ScriptWatch
from ..environments.installed import VLLM
from ..environments.sources import names_interpreter
from ..errors import BuildError, ChildError, LimitExceeded, Unsupported, UsageError
from ..gpus import compiled
from ..gpus.leases import GpuLease
from ..processes import family
from ..processes.agent import Agent
from ..processes.child import Child
from ..processes.early import NEVER, Early
from ..processes.leftover import Leftover
from ..processes.leftovers import sweep
from ..target_site.vllm_regress_target.gpu import refused
from ..util.deadline import DeadlineFor
from ..util.owner import Owner
from ..util.paths import writable_root
from ..util.rundir import RunDir
from .engine import AsyncEngine, Engine, start_engine
from .placement import PROBE, Asked, Placement, first_start, is_forged, kernels
from .pool import E, EnginePool
from .ports import lease_port
from .server import Server, start_server
from .settings import Settings
from .spec import EngineSpec, Front
from .target import RUNNING_INTERPRETER, Target, inspect, named_interpreter

T = TypeVar("T", Engine, AsyncEngine)
_SHORT_WAIT_S = 1.0
NEWEST_TRIED = "0.33.0"  # see docs/conformance.md; a newer one runs with a warning


@dataclasses.dataclass(frozen=True)
class _Start:
    """A process for an engine or a server, the request that starts it, the watch over its scripts, its time, and what to do once it has started."""

    child: Child
    request: dict[str, Any]
    scripts: ScriptWatch
    timeout: float | None
    note: Callable[[], None]


class Session:
    """Made on first use, closed once. Not shared between threads."""

    def __init__(
        self,
        settings: Settings,
        deadline_for: DeadlineFor,
        progress: Callable[[str], None] = lambda line: None,
        *,
        controller: Owner | None = None,
    ) -> None:
        self.settings = settings
        self._controller = controller
        self.charges: list[tuple[str, tuple[Leftover, ...]]] = []
        self.early = (
            NEVER if settings.full_deadlines else Early()
        )  # what may end a wait of the test that runs before its deadline
        self.on_waited: Callable[[], None] = lambda: None  # called after others were waited for
        self._deadline = deadline_for
        self.progress = progress
        self._run: RunDir | None = None
        self._targets: dict[str, Target] = {}
        self._failed: dict[str, BuildError] = {}
        self._agents: dict[tuple[str, str], Agent] = {}
        self._engines: EnginePool = EnginePool(settings.max_engines, self._charge)
        self._leases = contextlib.ExitStack()
        self._gpus = Placement(lambda line: self.progress(line))
        session_s = settings.limits.session_s
        self._until = None if session_s is None else time.monotonic() + session_s

    @property
    def run(self) -> RunDir:
        """The run directory, made on first use."""
        if self._run is None:
            for line in sweep():
                self.progress(line)
            self._run = RunDir.create(self._controller)
        return self._run

    def environment_names(self) -> tuple[str, ...]:
        """The environments asked for, or the one that is used when none was."""
        return tuple(map(_canonical, self.settings.environments)) or (default_environment(),)

    def target(self, name: str) -> Target:
        """Build (where it must be built), inspect and remember an environment."""
        if name in self._failed:
            raise self._failed[name].with_traceback(None)  # or it would grow with every test
        if name not in self._targets:
            python = self._interpreter(name)
            self._check_budget()
            self._targets[name] = inspect(name, python, self.settings.device)
            self._warn_of_newer(self._targets[name].versions.get("vllm", "0"))
        return self._targets[name]

    def _warn_of_newer(self, version: str) -> None:
        with contextlib.suppress(InvalidVersion):  # a build of one's own may be called anything
            if Version(version) > Version(NEWEST_TRIED):
                self.progress(
                    f"warning: vLLM {version} is newer than any this was tried with (up to {NEWEST_TRIED}); errors name what it misses"
                )

    def model_path(self, kind: str, device: str = "sim") -> str:
        """The checkpoint for ``kind`` (text, vision and others): forged once per machine, or what --vllm-model names; a path stays as it is.
        On gpu its heads are wider, for CUDA's attention backends."""
        if self.settings.model is not None:
            return self.settings.model
        if kind not in KINDS:
            return kind
        return str(ensure_checkpoint(kind, writable_root() / "checkpoints", head=64 if device == "gpu" else 32))

    def probe(self, target: Target, user: str = "") -> Child:
        """A fresh probe process in ``target``; on GPUs it leases one, for it may start an engine itself."""
        agent = self._agent(target)
        agent.inspect(self._deadline("import", None), architectures=architectures_of(self.model_path("text")))
        lease = self._lease(target, 1, PROBE, user) if target.device == "gpu" else None
        return self._fork(agent, "probe", lease, {}, None)

    def bare_agent(self, name: str, limits: Mapping[str, float]) -> Agent:
        """An agent in the environment ``name`` that imports no vLLM, for what works without: the environment need not have it."""
        self._check_budget()
        key = (name, f"bare {sorted(limits.items())}")
        agent = self._agents.get(key)
        if agent is None or not agent.alive:
            limits = {**self.settings.limits.as_request(self._until), **limits}
            agent = Agent(self._interpreter(name), self.run, name=f"bare-{len(self._agents)}", limits=limits)
            agent.start(self._deadline("import", None))
            self._agents[key] = agent
        return agent

    def engine(
        self, target: Target, spec: EngineSpec, *, user: str, fresh: bool, timeout: float | None = None
    ) -> Engine:
        """An offline engine for ``spec``: shared with other users of the same spec unless ``fresh``."""
        return self._shared_engine(Engine, target, spec, user, fresh, timeout)

    def async_engine(
        self, target: Target, spec: EngineSpec, *, user: str, fresh: bool, timeout: float | None = None
    ) -> AsyncEngine:
        """An asynchronous engine for ``spec``; shared likewise."""
        return self._shared_engine(AsyncEngine, target, spec, user, fresh, timeout)

    def server(
        self, target: Target, spec: EngineSpec, *, user: str, fresh: bool, timeout: float | None = None
    ) -> Server:
        """A server for ``spec``; shared likewise."""

        def start() -> Server:
            made = self._child(target, spec, "serve", timeout, user)
            try:
                server = start_server(
                    made.child, spec, lease_port(), made.request, self._deadline, made.scripts, made.timeout
                )
            except ChildError as error:
                words = refused(error.detail) if target.device == "gpu" else None
                if words is None:
                    raise
                raise Unsupported(words, refused_by=f"vLLM {target.versions['vllm']}") from error
            made.note()
            return server

        return self._shared((target.name, spec, "serve"), user, fresh, start)

    def drop(self, target: Target, spec: EngineSpec, front: Front) -> None:
        """Stop the shared engine of ``spec`` after a failure, so that the next test gets a new one. One that is held must have failed, too."""
        self._engines.give_up((target.name, spec, front))

    def hold(self, target: Target, spec: EngineSpec, front: Front) -> None:
        """The shared engine of ``spec`` is not stopped for others until ``release``."""
        self._engines.hold((target.name, spec, front))

    def release(self, target: Target, spec: EngineSpec, front: Front) -> None:
        """Take one ``hold`` back."""
        self._engines.release((target.name, spec, front))

    def close(self) -> None:
        """Stop every engine and agent, end what is left of this run, remove its directory."""
        self._engines.clear()
        for agent in self._agents.values():
            agent.stop()
        self._agents.clear()
        self._leases.close()
        if self._run is not None:
            strays = family.tagged(self._run.tag)
            if strays:
                self._charge("the session", tuple(Leftover("process", family.describe(p)) for p in strays))
                family.end(strays, grace_s=0.5)
            for segment in self._run.segments():  # noted by nannies that did not get to remove it
                self._charge("the session", (Leftover("shared memory", str(segment)),))
                segment.unlink(missing_ok=True)
            self._run.remove()
            self._run = None

    def _shared_engine(
        self, kind: type[T], target: Target, spec: EngineSpec, user: str, fresh: bool, timeout: float | None
    ) -> T:
        def start() -> T:
            made = self._child(target, spec, kind.front, timeout, user)
            engine = start_engine(kind, made.child, spec, made.request, self._deadline, made.scripts, made.timeout)
            made.note()
            return engine

        return self._shared((target.name, spec, kind.front), user, fresh, start)

    def _shared(self, key: tuple[str, EngineSpec, str], user: str, fresh: bool, start: Callable[[], E]) -> E:
        self._check_budget()
        if fresh:
            self._engines.make_room(user)
            return start()
        return self._engines.acquire(key, user, start)

    def _child(self, target: Target, spec: EngineSpec, front: Front, timeout: float | None, user: str) -> _Start:
        """The process for an engine or a server of ``spec``, the request that starts it, and the watch over its scripts."""
        if spec.server_options and front != "serve":
            raise UsageError(
                f"vllm_engine: server_options are options of `vllm serve` and mean nothing to front={front!r}: use the fixture vllm_server, or extra "
                "for engine arguments"
            )
        if target.device == "none":
            raise Unsupported(f"{target.name} has no engines", needs="vLLM")
        needed = needed_by(spec.model)
        if needed and self.settings.model is None and needed not in target.versions:
            raise Unsupported(f"{target.name} cannot load the {spec.model} model", needs=needed)
        agent = self._agent(target)
        if agent.import_error is not None:
            raise agent.import_error.with_traceback(None)
        if agent.refusal is not None:
            raise Unsupported(agent.refusal, since="0.7", device=target.device)
        model_path = self.model_path(spec.model, target.device)
        agent.inspect(self._deadline("import", None), architectures=architectures_of(model_path))
        draft = self.model_path(spec.draft, target.device) if spec.draft and spec.draft in KINDS else None
        request = spec.as_request(model_path=model_path, device=target.device, draft_path=draft)
        if self.settings.model is None:
            request["extra"] = {**arguments_of(spec.model), **request["extra"]}
        role = "server" if front == "serve" else "engine"
        lease = None
        if target.device == "gpu":
            asked = Asked.of(spec, forged=is_forged(spec, self.settings.model), share=agent.gpu_share)
            lease = self._lease(target, spec.gpus, asked, user)
            request["gpu"] = self._gpus.request(lease, asked)
            if timeout is None and not first_start(target, lease).exists():
                timeout = self.settings.timeouts.first_start_s
        scripts = ScriptWatch.of(request, self.run.logs / f"scripts-{secrets.token_hex(4)}")
        child = self._fork(agent, role, lease, {**dict(spec.env), **scripts.environment}, timeout, label=front)
        return _Start(child, request, scripts, timeout, lambda: self._note(target, lease, child))

    def _note(self, target: Target, lease: GpuLease | None, child: Child) -> None:
        """An engine has started: what it shares is known now, on GPUs its processes, too, and its kernels are compiled."""
        child.note_shared_memory()
        if lease is not None:
            lease.claim([process.pid for process in child.processes()])
            child.gpu = self._gpus.facts(lease, child)
            first_start(target, lease).parent.mkdir(parents=True, exist_ok=True)
            first_start(target, lease).touch()

    def _fork(
        self,
        agent: Agent,
        role: str,
        lease: GpuLease | None,
        environment: Mapping[str, str],
        timeout: float | None,
        label: str = "",
    ) -> Child:
        try:
            child = agent.fork(
                role,
                self._deadline("start", timeout),
                environment={**environment, **(lease.environment if lease else {})},
                start_method=self.settings.start_method,
                label=label,
            )
        except BaseException:
            if lease:
                lease.release(self._deadline("stop", 0))
            raise
        child.early = self.early
        if lease:
            child.on_end = lambda: self._give_back(lease)
            child.gpu = self._gpus.facts(lease, child)
        return child

    def _lease(self, target: Target, count: int, asked: Asked, user: str) -> GpuLease:
        """GPUs for ``user``: idle engines of this run are ended before others are waited for."""
        deadline = self._deadline("start", self.settings.gpu_wait_s)
        begun = time.monotonic()
        lease = self._gpus.lease(target, count, asked, deadline, lambda: self._engines.drop_idle(user))
        if time.monotonic() - begun > _SHORT_WAIT_S:
            self.on_waited()
        return lease

    def give_way(self) -> None:
        """Between tests: where another run waits for GPUs that our idle engines hold, end those."""
        while self._gpus.leases.wanted_by_others() and self._engines.drop_idle():
            pass

    def _give_back(self, lease: GpuLease) -> tuple[Leftover, ...]:
        """An engine has ended: its GPUs go back when their memory is free; memory that stays is charged to who used the engine."""
        return tuple(Leftover("GPU memory", held) for held in lease.release(self._deadline("stop", None)))

    def _check_budget(self) -> None:
        if self._until is not None and time.monotonic() > self._until:
            words = f"the session's budget of {self.settings.limits.session_s:g} s is used up (--vllm-session-timeout): nothing more is started"
            raise LimitExceeded(words, phase="start")

    def _agent(self, target: Target) -> Agent:
        self._check_budget()
        key = (target.name, target.device)
        agent = self._agents.get(key)
        if agent is None or not agent.alive:
            environment = {"VLLM_REGRESS_DEVICE": str(target.device)}
            if target.device == "gpu":
                environment |= self._gpus.agent_environment(target)
                self._leases.enter_context(compiled.held(kernels(target)))
            limits = self.settings.limits.as_request(self._until)
            agent = Agent(
                target.python,
                self.run,
                environment=environment,
                name=f"agent-{len(self._agents)}",
                limits=limits,
                about=target.describe(),
            )
            agent.start(self._deadline("import", None))
            self._agents[key] = agent
            self.progress(f"importing vLLM in {target.name} ({target.device})")
            agent.warm(self._deadline("import", None), fronts=["serve"])
            if agent.spawns:
                self.progress(f"note: processes are spawned, not forked: {agent.spawns}")
        return agent

    def _interpreter(self, name: str) -> Path:
        if named := named_interpreter(name):
            return named
        from ..environments.cache import EnvironmentCache
        from ..environments.names import resolve

        try:
            return self._leases.enter_context(EnvironmentCache().lease(resolve(name), progress=self.progress))
        except BuildError as error:
            self._failed[name] = error  # told to every test, tried once
            raise

    def _charge(self, user: str, left: tuple[Leftover, ...]) -> None:
        self.charges.append((user, left))


def default_environment() -> str:
    """The running interpreter where it has vLLM, else the default of the environments.toml around the working directory.

    Raises ``UsageError`` where there is neither: gigabytes are downloaded for those who ask for them.
    """
    for distribution in VLLM:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version(distribution)
            return RUNNING_INTERPRETER
    from ..environments.recipes import default_name

    if (name := default_name()) is not None:
        return name
    raise UsageError(
        f"no environment is named, and {sys.executable} has no vLLM. Name the vLLM to test: --vllm-env NAME|PATH, or the ini setting vllm_env; "
        "the path of an interpreter that has vLLM, or a name such as vllm-0.8.5, which is built on first use (several GiB; `vllm-regress env list` "
        "shows the names). Or install vLLM beside pytest"
    )


def _canonical(name: str) -> str:
    """The name that results carry: tox's name for an environment (vllm0.8.4-sim) and the environment's own are one."""
    from ..environments.names import resolve

    return name if name == RUNNING_INTERPRETER or names_interpreter(name) else resolve(name).name
