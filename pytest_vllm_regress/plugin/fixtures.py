"""Fixtures: real engines, servers and probes in the target environment."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from .state import SESSION, leg_of, needs_legs, settings_of

if TYPE_CHECKING:
    from ..engines.engine import AsyncEngine, Engine
    from ..engines.probe import AtWork, Probe
    from ..engines.processes.child import Child
    from ..engines.processes.child_processes import Leftover
    from ..engines.server import Server
    from ..engines.session import Session
    from ..engines.spec import EngineSpec, Front
    from ..engines.standalone import Engines
    from ..engines.target import Target
    from .leg import Leg


@pytest.fixture(scope="session")
def vllm_env(request: pytest.FixtureRequest) -> Target:
    """The environment under test: ``name``, ``python``, ``device``, ``versions``.

    Parametrized when --vllm-env is repeated.
    """
    from .session import session_of

    session = session_of(request.config)
    return session.target(getattr(request, "param", None) or session.environment_names()[0])


@pytest.fixture
def vllm_leg(request: pytest.FixtureRequest) -> str:
    """``subject``, or ``control`` when the test runs a second time to prove that the harness works.

    Leave the trigger out in the control leg.
    """
    leg = leg_of(request.node)
    leg.control_used = True
    return str(leg.name)


@pytest.fixture
def vllm_at_work(request: pytest.FixtureRequest) -> AtWork:
    """``vllm_at_work("blocks were cached", hits > 0)``: a positive control. If the mechanism that
    the case is about was not at work, the verdict
    is INCONCLUSIVE."""
    from ..cases.observation import Mechanism
    from ..errors import NotAtWork

    def check(what: str, held: object) -> None:
        leg_of(request.node).at_work.append(Mechanism(what, bool(held)))
        if not held:
            raise NotAtWork(f"not at work: {what}")

    return check


@pytest.fixture
def vllm_model_path(request: pytest.FixtureRequest, vllm_env: Target) -> str:
    """Path of the tiny text checkpoint, or what --vllm-model names."""
    return _session(request).model_path("text", vllm_env.device)


@pytest.fixture
def vllm_sidecar(request: pytest.FixtureRequest, vllm_env: Target) -> Callable[[str], str]:
    """``vllm_sidecar("ray-2.31.0")``: path of a folder with only that package, for a process that
    must import another version."""
    from ..environments.install import ensure_sidecar

    return lambda name: str(ensure_sidecar(name, vllm_env.python))


@pytest.fixture
def vllm_probe(request: pytest.FixtureRequest, vllm_env: Target) -> Iterator[Probe]:
    """Call functions of ``probe.py`` beside the test, or built-in ones (``"parsers:tool_calls"``),
    in one process of the target:
    ``vllm_probe("function", timeout=None, **arguments)``."""
    from ..engines.probe import Probe
    from ..engines.processes.child import Loan
    from .session import deadline_for, early_exit_of

    leg, session = leg_of(request.node), _session(request)
    leg.phase = "probe"
    file = request.path.with_name("probe.py")

    def start() -> Child:
        child = session.probe(vllm_env, request.node.nodeid)
        _note_gpu(request, child)
        return child

    interceptor = leg.fault.interceptor() if leg.fault else None
    loan = Loan(early_exit_of(request.node), interceptor, leg.replied)
    probe = Probe(start, file, deadline_for(request.config), loan, leg.changed_arguments)
    yield probe
    if leg.error is not None:
        leg.engine = probe.parts()
    _report_leftovers(request, probe.close())


@pytest.fixture
def vllm_grammar(
    request: pytest.FixtureRequest, vllm_env: Target
) -> Iterator[Callable[[str], None]]:
    """``vllm_grammar("finding.json")``: repeat a finding of `vllm-regress fuzz` (the file beside
    the test); fails while the finding does."""
    from ..cases.observation import Mechanism
    from ..fuzz.finding import ReplayAnswer
    from ..fuzz.hunter import load
    from ..fuzz.schemas.schema_hunter import SchemaHunter

    with contextlib.ExitStack() as stack:

        def ask(name: str) -> None:
            if fault := leg_of(request.node).fault:
                fault.forge("probe")  # the process of a backend is lent to nobody
            finding = load(request.path.with_name(name), "schemas")
            hunter = SchemaHunter.of([_session(request)], vllm_env.name)
            stack.enter_context(hunter.lanes)
            answer, words = hunter.replay(finding)
            leg = leg_of(request.node)
            leg.replied("probe")
            leg.at_work.append(
                Mechanism("the question can be asked", answer is not ReplayAnswer.CANNOT_RUN)
            )
            if answer is ReplayAnswer.CANNOT_RUN:
                raise RuntimeError(f"the finding could not be replayed: {words}")
            assert answer is ReplayAnswer.FIXED, f"{finding.problem}: {words}"

        leg_of(request.node).phase = "probe"
        yield ask


@pytest.fixture(scope="session")
def vllm_engines(request: pytest.FixtureRequest, vllm_env: Target) -> Engines:
    """``vllm_engines(front="serve", tensor_parallel_size=2)``: engines for fixtures of wider scope.
    An engine stays until
    ``vllm_engines.release(engine)`` or the end of the session. Tests with the same spec share
    it."""
    from ..engines.standalone import Engines
    from .options import engine_defaults
    from .session import current_item, session_of

    def on_reply(phase: str) -> None:
        if (item := current_item(request.config)) is not None:
            leg_of(item).replied(phase)

    def remember() -> bool:
        item = current_item(request.config)
        return item is None or item.get_closest_marker("vllm_case") is None

    defaults = engine_defaults(request.config)
    session = session_of(request.config)
    return Engines(session, vllm_env, on_reply, defaults=defaults, remember=remember)


@pytest.fixture
def engine_spec(request: pytest.FixtureRequest, vllm_env: Target) -> EngineSpec:
    """The EngineSpec of this test: the project's defaults, the marker's fixed fields, and this
    combination of its axes. A control leg changes only
    ``vllm_engine.spec``."""
    from ..cases.collection import engine_marker
    from ..engines.spec import EngineSpec
    from .markers import defaults_for

    marker, values = engine_marker(request.node), getattr(request, "param", {})
    if late := [axis.name for axis in marker.axes if axis.name not in values]:
        raise pytest.UsageError(
            f"{request.node.nodeid}: vllm_engine({late[0]}=[...]) was added when the test was "
            "collected already: give one value, or add it in pytest_generate_tests"
        )
    fields = {**defaults_for(request.node), **marker.fixed, **values}
    return EngineSpec.create(**fields).relative_to(request.path.parent)


@pytest.fixture
def vllm_engine(
    request: pytest.FixtureRequest, vllm_env: Target, engine_spec: EngineSpec
) -> Iterator[Engine | AsyncEngine]:
    """A running engine for ``engine_spec`` (marker ``vllm_engine``), shared with other tests unless
    ``fresh=True``."""
    from ..cases.collection import engine_marker

    front = engine_marker(request.node).front
    if front == "serve":
        raise pytest.UsageError(
            f"{request.node.nodeid}: vllm_engine(front='serve') needs the fixture vllm_server, not vllm_engine"
        )
    for engine in _lent(request, vllm_env, engine_spec, front):
        engine.probe_file = request.path.with_name("probe.py")
        yield engine


@pytest.fixture
def vllm_server(
    request: pytest.FixtureRequest, vllm_env: Target, engine_spec: EngineSpec
) -> Iterator[Server]:
    """A running ``vllm serve`` for ``engine_spec``:

    ``base_url``, ``api_key``, ``chat``, ``stream_chat``, ``post`` and an httpx ``client``.
    """
    yield from _lent(request, vllm_env, engine_spec, "serve")


def _lent(
    request: pytest.FixtureRequest, target: Target, spec: EngineSpec, front: Front
) -> Iterator[Any]:
    """Lend an engine or a server to one test: its replies count for its verdict, and a failure ends it."""
    from ..cases.collection import engine_marker
    from ..engines.processes.child import Loan
    from .session import early_exit_of

    session, leg, marker = _session(request), leg_of(request.node), engine_marker(request.node)
    leg.phase = "start"
    # The control leg may change its import_path.
    spec = leg.changed_spec(spec).relative_to(request.path.parent)
    fault = leg.fault
    if fault is not None:
        fault.at_start()
    # A fault injection ends the engine only where that is the fault.
    fresh = marker.fresh and fault is None
    engine = session.start(
        front,
        target,
        spec,
        user=request.node.nodeid,
        fresh=fresh,
        timeout=marker.timeout,
        remember=not (fresh or needs_legs(request.node)),
    )
    leg.replied("start")
    _note_gpu(request, engine.child)
    loan = Loan(
        early_exit_of(request.node), fault.interceptor(engine) if fault else None, leg.replied
    )
    with engine.lend(loan, leg.schemas):
        leg.phase = "request"
        with fault.between(engine) if fault else contextlib.nullcontext():
            yield engine
        leg.record_engine(engine.child)
        held = engine.held_requests() if leg.error is None and fault is None else None
        try:
            if fresh:
                _report_leftovers(request, engine.stop())
            elif _is_spent(leg, engine):
                session.drop(target, spec, front)
            if held:
                raise held
        finally:
            if fault is None:
                engine.scripts.check()  # for requests of clients that the test made itself


def _is_spent(leg: Leg, engine: Engine | AsyncEngine | Server) -> bool:
    """Can a test's engine be reused? Not if the leg failed, sent it a signal or waited for its end.

    Otherwise by tests with equal environment, spec and front (``engines/pool.py``)."""
    if engine.spent:
        return True
    if leg.fault is not None:
        return leg.fault.ends_the_engine or engine.child.engine_is_dead
    return leg.error is not None or leg.smaller_engine or not engine.child.alive


def _note_gpu(request: pytest.FixtureRequest, child: Child) -> None:
    """Put the GPUs that the test runs on into the result file and into JUnit reports."""
    gpu = _session(request).gpus.facts(child)
    leg_of(request.node).gpu = gpu
    request.node.user_properties += [(f"vllm_gpu_{name}", value) for name, value in gpu.items()]


@contextlib.contextmanager
def skipping() -> Iterator[None]:
    """Skip the test, with the reason, if the version or the device does not support what it needs."""
    from ..errors import Unsupported

    try:
        yield
    except Unsupported as error:
        raise pytest.skip.Exception(str(error)) from error


@contextlib.contextmanager
def checking_scripts(item: pytest.Item) -> Iterator[None]:
    """Raise ``ScriptError`` in the test whose request could not follow its script, from the error
    that the test had because of it."""
    from ..errors import ScriptError, Unsupported

    def check() -> None:
        if SESSION in item.config.stash and leg_of(item).fault is None:
            item.config.stash[SESSION].check_scripts()

    try:
        yield
    except (ScriptError, Unsupported):
        raise
    except (Exception, pytest.fail.Exception) as error:
        try:
            check()
        except ScriptError as found:
            raise found from error
        raise
    check()


@contextlib.contextmanager
def ending_forks() -> Iterator[None]:
    """End a forked child of the test before it returns to pytest, where it would run the remaining
    tests and clean up this run.

    Its exit status is that of a Python program that ends in the same way.
    """
    from .leg import sanitize

    controller, status = os.getpid(), 0
    try:
        yield
    except BaseException as error:
        if os.getpid() == controller:
            raise
        status = 1
        if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
            status = error.code or 0
        else:
            with contextlib.suppress(OSError, ValueError):  # a full disk, or a closed stream
                print(sanitize(traceback.format_exc()), file=sys.stderr, flush=True)
    if os.getpid() != controller:
        os._exit(status & 0xFF)


def _report_leftovers(request: pytest.FixtureRequest, leftovers: tuple[Leftover, ...]) -> None:
    if not leftovers:
        return
    _session(request).leftover_reports.append((request.node.nodeid, leftovers))
    if settings_of(request.config).leftovers == "fail":
        from ..engines.processes.child_processes import describe_leftovers

        pytest.fail(
            f"left behind by this test (removed):\n{describe_leftovers(leftovers)}", pytrace=False
        )


def _session(request: pytest.FixtureRequest) -> Session:
    from .session import session_of

    return session_of(request.config)
