"""One run of the harness: its run directory, target environments, agents and engines.

The plugin uses it; it does not know pytest.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from packaging.version import InvalidVersion, Version

from ..errors import ChildDied, ChildError, DeadlineExceeded, RemoteError, Unsupported
from ..target_site.vllm_regress_target.dialect.gpu import refusal_in
from ..target_site.vllm_regress_target.dialect.held import FOLDER as HELD_FOLDER
from ..util.deadline import DeadlineFor
from ..util.paths import writable_root
from ..util.rundir import Owner, RunDir
from .agents import Agents
from .checkpoints.forge import (
    KINDS,
    architectures_of,
    arguments_of,
    ensure_checkpoint,
    positions_for,
    unmet_needs,
)
from .checkpoints.hub_cache import snapshot_of, variables_of
from .engine import AsyncEngine, Engine, start_engine
from .gpus.leases import GpuLease
from .held import HeldReader
from .inputs.script import ScriptWatch
from .placement import PROBE, MemoryRequest, Placement
from .pool import EnginePool
from .ports import lease_port
from .processes import process_tree
from .processes.abandoned import remove_abandoned
from .processes.agent import Agent
from .processes.child import Child, Loan
from .processes.child_processes import Leftover
from .processes.early_exit import EarlyExitPolicy
from .running import Launch, Running
from .settings import KEPT_REQUESTS, Settings
from .spec import EngineSpec, Front
from .target import Target, built_target, canonical_name, default_environment, inspect

if TYPE_CHECKING:
    from .server import Server

_SHORT_WAIT_S = 1.0
_ABOUT_THE_SPEC = (RemoteError, ChildDied, DeadlineExceeded, Unsupported)
"""Errors of a start that say something about the spec, and not about the state of the machine."""
NEWEST_TRIED = "0.33.0"  # see docs/generated/conformance.md; a newer one runs with a warning


class Session:
    """Created on first use, closed once. Not shared between threads.

    ``early_exit``: returns the policy of the running test. ``on_waited``: called after the session
    has waited for GPUs of other runs. ``shared_agents``: see ``Agents``.
    """

    def __init__(
        self,
        settings: Settings,
        deadline_for: DeadlineFor,
        progress: Callable[[str], None] = lambda line: None,
        *,
        controller: Owner | None = None,
        early_exit: Callable[[], EarlyExitPolicy] | None = None,
        on_waited: Callable[[], None] = lambda: None,
        shared_agents: str = "",
    ) -> None:
        self.settings = settings
        self._pid = os.getpid()
        self._names: tuple[str, ...] = ()
        self._controller = controller
        self._early_exit = early_exit or self.default_early_exit
        self._on_waited = on_waited
        self.leftover_reports: list[tuple[str, tuple[Leftover, ...]]] = []
        self._deadline = deadline_for
        self.progress = progress
        self._run: RunDir | None = None
        self._targets: dict[str, Target] = {}
        self._started: WeakSet[Running] = WeakSet()
        self._leaky: set[str] = set()
        self._unstartable: dict[tuple[str, EngineSpec, Front], Exception] = {}
        self.engines = EnginePool(settings.max_engines, self._charge)
        self.gpus = Placement(lambda line: self.progress(line), runs=settings.gpu_runs)
        self.agents = Agents(
            lambda: self.run,
            self.gpus,
            settings.limits,
            deadline_for,
            lambda line: self.progress(line),
            {**variables_of(settings.hub_cache), **settings.variables},
            settings.inherited,
            shared_agents,
        )

    @property
    def run(self) -> RunDir:
        """Return the run directory, which is created on first use."""
        if self._run is None:
            for line in remove_abandoned():
                self.progress(line)
            self._run = RunDir.create(self._controller)
        self._run.check()
        return self._run

    def _renew_run(self) -> None:
        """Begin with a new run directory if a program that cleans has removed the present one, so
        that only the test that ran then has no verdict."""
        if self._run is None or self._run.exists:
            return
        self.progress(f"{self._run.path} was removed by another program: processes start again")
        self.engines.clear()
        self.agents.end_processes()
        process_tree.terminate(process_tree.with_tag(self._run.tag), grace_s=0.5)
        self._run = None

    def environment_names(self) -> tuple[str, ...]:
        """Return the requested environments, or the default one.

        They are looked up once, because a test may change the working directory.
        """
        if not self._names:
            self._names = tuple(map(canonical_name, self.settings.environments)) or (
                default_environment(),
            )
        return self._names

    def target(self, name: str) -> Target:
        """Build (where it must be built), inspect and remember an environment."""
        if name not in self._targets:
            python = self.agents.interpreter(name)
            self.agents.check_budget()
            self._targets[name] = inspect(name, python, self.settings.device)
            self._warn_of_newer(self._targets[name].versions.get("vllm", "0"))
        return self._targets[name]

    def preview(self, name: str) -> str:
        """Return one line about an environment, which may not be built yet. Builds nothing.

        Raises ``UsageError`` if it cannot run here, on device gpu also if driver and GPUs are too
        old for it.
        """
        target = built_target(name, self.settings.device)
        if target is not None:
            if target.device == "gpu":
                self.gpus.devices(target)
            return target.describe()
        if self.settings.device == "gpu":
            self.gpus.check_unbuilt(name)
        return f"{name}: not built yet; it is built before its first test"

    def _warn_of_newer(self, version: str) -> None:
        with suppress(InvalidVersion):  # a build of your own may have any version text
            if Version(version) > Version(NEWEST_TRIED):
                self.progress(
                    f"warning: vLLM {version} is newer than any this was tried with (up to {NEWEST_TRIED}); errors name what it misses"
                )

    def model_path(self, kind: str, device: str = "sim", max_model_len: int = 0) -> str:
        """Return the checkpoint for ``kind`` (text, vision and others): forged once per machine, or
        named by --vllm-model. A path stays as it is.

        On gpu its heads are wider, as CUDA's attention backends need.
        """
        if self.settings.model is not None:
            return self.settings.model
        if kind not in KINDS:
            return kind
        return str(
            ensure_checkpoint(
                kind,
                writable_root() / "checkpoints",
                head=64 if device == "gpu" else 32,
                positions=positions_for(max_model_len),
            )
        )

    def default_early_exit(self) -> EarlyExitPolicy:
        """Return what may end a wait early where no test has a policy of its own."""
        return EarlyExitPolicy.for_leg(full_deadlines=self.settings.full_deadlines)

    def probe(self, target: Target, user: str = "") -> Child:
        """Start a probe process in ``target``.

        On GPUs it leases one, since it may start an engine itself.
        """
        self._renew_run()
        agent = self.agents.warm(target)
        agent.inspect(
            self._deadline("import", None), architectures=architectures_of(self.model_path("text"))
        )
        lease = self._lease(target, 1, PROBE, user) if target.device == "gpu" else None
        return self._start_child(agent, "probe", lease, {}, None)

    def start(
        self,
        front: Front,
        target: Target,
        spec: EngineSpec,
        *,
        user: str,
        fresh: bool,
        timeout: float | None = None,
        remember: bool = False,
    ) -> Any:
        """Return an engine (front offline or async) or a server (front serve) for ``spec``, shared
        with other users of the same spec unless ``fresh``. ``timeout`` of its start in seconds.

        ``remember``: if it cannot start, it is not tried again in this session; the next call
        raises the same error.
        """
        key = (target.name, spec, front)
        if remember and key in self._unstartable:
            raise self._unstartable[key]
        self._renew_run()
        launched = partial(self._launched, front, target, spec, user, timeout)
        self.agents.check_budget()
        try:
            if fresh:
                self.engines.make_room(user)
                return launched()
            return self.engines.acquire(key, user, launched)
        except (ChildError, Unsupported) as error:
            if self._run is not None:
                self._run.check()  # processes die when their files are removed
            if remember and isinstance(error, _ABOUT_THE_SPEC):
                self._unstartable[key] = error
            raise

    def drop(self, target: Target, spec: EngineSpec, front: Front) -> None:
        """Stop the shared engine of ``spec`` after a failure, so that the next test gets a new one.

        An engine that is held and still works stays.
        """
        self.engines.give_up((target.name, spec, front))

    def close(self) -> None:
        """Stop all engines and agents, end any processes that are left, and remove the run
        directory. Does nothing in a forked process."""
        if os.getpid() != self._pid:
            return
        self.engines.clear()
        self.agents.stop()
        if self._run is not None:
            strays = process_tree.with_tag(self._run.tag)
            if strays:
                self._charge(
                    "the session",
                    tuple(Leftover("process", process_tree.describe(p)) for p in strays),
                )
                process_tree.terminate(strays, grace_s=0.5)
            for (
                segment
            ) in self._run.segments():  # noted by nannies that died before they removed it
                self._charge("the session", (Leftover("shared memory", str(segment)),))
                segment.unlink(missing_ok=True)
            self._run.remove()
            self._run = None

    def _launched(
        self, front: Front, target: Target, spec: EngineSpec, user: str, timeout: float | None
    ) -> Engine | AsyncEngine | Server:
        launch, lease = self._prepare(front, target, spec, user, timeout)
        try:
            running = _start_front(front, launch)
        except ChildError as error:
            words = refusal_in(error.detail) if lease and front == "serve" else None
            if words is None:
                raise
            version = target.versions["vllm"]
            raise Unsupported(words, refused_by=f"vLLM {version}", device="gpu") from error
        self._started.add(running)
        launch.child.note_shared_memory()
        if lease is not None:
            self.gpus.note_started(target, lease, launch.child)
        return running

    def _prepare(
        self, front: Front, target: Target, spec: EngineSpec, user: str, timeout: float | None
    ) -> tuple[Launch, GpuLease | None]:
        """Start the process for an engine or a server and prepare the request that starts the
        engine in it."""
        spec.check_front(front)
        self._check_target(target, spec)
        agent = self.agents.warm(target)
        if agent.import_error is not None:
            raise agent.import_error.with_traceback(None)
        if agent.refusal is not None:
            raise Unsupported(agent.refusal, since="0.7", device=target.device)
        if spec.env and self.settings.start_method == "fork":
            agent = self.agents.forking(target, spec.env)
        forged = self.settings.model is None
        model_path = self.model_path(spec.model, target.device, spec.max_model_len)
        files = snapshot_of(model_path, self.settings.hub_cache) or model_path
        agent.inspect(self._deadline("import", None), architectures=architectures_of(str(files)))
        lease = gpu = None
        if target.device == "gpu":
            is_tiny = forged and spec.model in KINDS
            memory = MemoryRequest.of(spec, forged=is_tiny, share=agent.gpu_share)
            lease = self._lease(target, spec.gpus, memory, user)
            gpu = self.gpus.request(lease, memory)
            # The first start on such GPUs compiles kernels.
            if timeout is None and not self.gpus.has_started(target, lease):
                timeout = self.settings.timeouts.first_start_s
        kind = spec.draft if spec.draft in KINDS else None
        draft = self.model_path(kind, target.device, spec.max_model_len) if kind else None
        request = spec.as_request(
            model_path=model_path,
            device=target.device,
            draft_path=draft,
            default_arguments=arguments_of(spec.model) if forged else {},
            gpu=gpu,
        )
        scripts = ScriptWatch.of(request, self.run.logs / f"scripts-{secrets.token_hex(4)}")
        held = self._held_folder()
        child = self._start_child(
            agent,
            "server" if front == "serve" else "engine",
            lease,
            {**spec.env, **scripts.environment, **({HELD_FOLDER: str(held)} if held else {})},
            timeout,
            label=front,
            import_path=spec.import_path,
        )
        reader = HeldReader(held, self._leaky) if held else None
        return Launch(child, spec, self._deadline, scripts, request, timeout, reader), lease

    def _held_folder(self) -> Path | None:
        """Return a new folder for the sockets of an engine whose requests are checked, if they are."""
        if self.settings.leftovers != KEPT_REQUESTS:
            return None
        folder = self.run.path / f"held-{secrets.token_hex(4)}"
        folder.mkdir()
        return folder

    def _check_target(self, target: Target, spec: EngineSpec) -> None:
        """Raise ``Unsupported`` if no engine of ``spec`` can start in ``target``."""
        if target.device == "none":
            raise Unsupported(f"{target.name} has no engines", needs="vLLM")
        needs = unmet_needs(spec.model, target.versions) if self.settings.model is None else ()
        if needs:
            raise Unsupported(
                f"{target.name} cannot load the {spec.model} model", needs=" and ".join(needs)
            )

    def _start_child(
        self,
        agent: Agent,
        role: str,
        lease: GpuLease | None,
        environment: Mapping[str, str],
        timeout: float | None,
        label: str = "",
        import_path: Sequence[str | Path] = (),
    ) -> Child:
        try:
            child = agent.start_child(
                role,
                self._deadline("start", timeout),
                environment={**environment, **(lease.environment if lease else {})},
                start_method=self.settings.start_method,
                label=label,
                import_path=import_path,
                loan=Loan(self._early_exit()),
            )
        except BaseException:
            if lease:
                lease.release(self._deadline("stop", 0))
            raise
        if lease:
            self.gpus.assign(lease, child, lambda: self._deadline("stop", None))
        return child

    def _lease(self, target: Target, count: int, memory: MemoryRequest, user: str) -> GpuLease:
        """Lease GPUs for ``user``.

        Idle engines of this run are stopped before the lease waits for other runs.
        """
        deadline = self._deadline("start", self.settings.gpu_wait_s)
        begun = time.monotonic()
        devices = self.gpus.devices(target)
        lease = self.gpus.leases.lease(
            devices, count, memory.needed, deadline, lambda: self.engines.drop_idle(user)
        )
        if time.monotonic() - begun > _SHORT_WAIT_S:
            self._on_waited()
        return lease

    def check_scripts(self) -> None:
        """Raise ``ScriptError`` if an engine could not follow a script since the last check."""
        for running in tuple(self._started):
            running.scripts.check()

    def answered(self) -> list[str]:
        """Return the requests of this test's clients that servers answered, with their status."""
        return [line for running in self._started for line in running.answered]

    def end_test(self) -> None:
        """At the end of a test, clear what it scripted for shared servers."""
        for running in tuple(self._started):
            running.forget_scripts()

    def begin_again(self, user: str) -> None:
        """The test ``user`` runs once more: its engines may be reused, or stopped for others that
        it starts."""
        self.end_test()
        self.engines.release_all(user)

    def give_way(self) -> None:
        """Stop our idle engines while another run waits for their GPUs. Called between tests."""
        while self.gpus.leases.requested_by_others() and self.engines.drop_idle():
            pass

    def _charge(self, user: str, leftovers: tuple[Leftover, ...]) -> None:
        self.leftover_reports.append((user, leftovers))


def _start_front(front: Front, launch: Launch) -> Engine | AsyncEngine | Server:
    if front == "serve":
        from .server import start_server  # imports HTTP clients, which takes 0.15 s

        return start_server(launch, lease_port())
    if front == "async":
        return start_engine(AsyncEngine, launch)
    return start_engine(Engine, launch)
