"""The fixtures: real engines, servers and probes in the target environment."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

import pytest

from .stash import evidence_of, settings_of

if TYPE_CHECKING:
    from ..engines.engine import AsyncEngine, Engine
    from ..engines.probe import AtWork, Probe
    from ..engines.server import Server
    from ..engines.session import Session
    from ..engines.spec import EngineSpec, Front
    from ..engines.standalone import Engines
    from ..engines.target import Target
    from ..processes.child import Child
    from ..processes.leftover import Leftover

    E = TypeVar("E", Engine | AsyncEngine, Server)


@pytest.fixture(scope="session")
def vllm_env(request: pytest.FixtureRequest) -> Target:
    """The environment under test: ``name``, ``python``, ``device``, ``versions``. Parametrized when --vllm-env is repeated."""
    from .session import session_of

    session = session_of(request.config)
    return session.target(getattr(request, "param", None) or session.environment_names()[0])


@pytest.fixture
def vllm_leg(request: pytest.FixtureRequest) -> str:
    """``subject``, or ``control`` when the test runs a second time to prove that the harness itself works: leave the trigger out then."""
    evidence = evidence_of(request.node)
    evidence.control_used = True
    return str(evidence.leg)


@pytest.fixture
def vllm_at_work(request: pytest.FixtureRequest) -> AtWork:
    """``vllm_at_work("blocks were cached", hits > 0)``: a positive control. Unless what the case is about was at work, a pass or a failure
    says nothing, and the verdict is INCONCLUSIVE."""
    from ..cases.observation import Mechanism
    from ..errors import NotAtWork

    def check(what: str, held: object) -> None:
        evidence_of(request.node).at_work.append(Mechanism(what, bool(held)))
        if not held:
            raise NotAtWork(f"not at work: {what}")

    return check


@pytest.fixture
def vllm_model_path(request: pytest.FixtureRequest, vllm_env: Target) -> str:
    """Path of the tiny text checkpoint, or what --vllm-model names."""
    return _session(request).model_path("text", vllm_env.device)


@pytest.fixture
def vllm_sidecar(request: pytest.FixtureRequest, vllm_env: Target) -> Callable[[str], str]:
    """``vllm_sidecar("ray-2.31.0")``: path of a folder that holds that package alone, for a process that is to import another version."""
    from ..environments.sidecars import ensure_sidecar

    return lambda name: str(ensure_sidecar(name, vllm_env.python))


@pytest.fixture
def vllm_probe(request: pytest.FixtureRequest, vllm_env: Target) -> Iterator[Probe]:
    """Call functions of ``probe.py`` beside the test, in one process of the target: ``vllm_probe("function", timeout=None, **arguments)``."""
    from ..engines.probe import Probe
    from .session import deadline_for

    evidence, session = evidence_of(request.node), _session(request)
    evidence.phase = "probe"
    file = request.path.with_name("probe.py")

    def start() -> Child:
        child = session.probe(vllm_env, request.node.nodeid)
        _note_gpu(request, child.gpu)
        child.border = evidence.strike.border(child) if evidence.strike else None
        return child

    probe = Probe(start, file, deadline_for(request.config), evidence.replied, evidence.changed_arguments)
    yield probe
    _charge(request, probe.close())


@pytest.fixture
def vllm_grammar(request: pytest.FixtureRequest, vllm_env: Target) -> Iterator[Callable[[str], None]]:
    """``vllm_grammar("finding.json")``: asks again what `vllm-regress fuzz` found (the file beside the test); fails while it still fails."""
    from ..cases.observation import Mechanism
    from ..fuzz.artefact import Answer, load, replay
    from ..fuzz.checker import Checker

    with contextlib.ExitStack() as stack:

        def ask(name: str) -> None:
            artefact = load(request.path.with_name(name))
            checker = Checker(_session(request), vllm_env.name, artefact.backend, artefact.patience)
            stack.callback(checker.close)
            answer, words = replay(artefact, checker)
            evidence = evidence_of(request.node)
            evidence.replied("probe")
            evidence.at_work.append(Mechanism("the question can be asked", answer is not Answer.CANNOT_RUN))
            if answer is Answer.CANNOT_RUN:
                raise RuntimeError(f"nothing could be seen: {words}")
            assert answer is Answer.FIXED, f"{artefact.problem.outcome} ({artefact.problem.key}): {words}"

        evidence_of(request.node).phase = "probe"
        yield ask


@pytest.fixture(scope="session")
def vllm_engines(request: pytest.FixtureRequest, vllm_env: Target) -> Engines:
    """``vllm_engines(front="serve", tensor_parallel_size=2)``: engines for fixtures of wider scope. It stays until ``vllm_engines.release(engine)``
    or the end of the session, and is the one that tests of the same spec share."""
    from ..engines.standalone import Engines
    from .session import current_item, session_of

    def on_reply(phase: str) -> None:
        if (item := current_item(request.config)) is not None:
            evidence_of(item).replied(phase)

    return Engines(session_of(request.config), vllm_env, on_reply)


@pytest.fixture
def engine_spec(request: pytest.FixtureRequest, vllm_env: Target) -> EngineSpec:
    """The EngineSpec of this test: the marker's fixed fields and this combination of its axes. A control leg changes ``vllm_engine.spec``
    only."""
    from ..engines.spec import EngineSpec
    from .markers import engine_marker

    return EngineSpec.create(**{**engine_marker(request.node).fixed, **getattr(request, "param", {})})


@pytest.fixture
def vllm_engine(
    request: pytest.FixtureRequest, vllm_env: Target, engine_spec: EngineSpec
) -> Iterator[Engine | AsyncEngine]:
    """A running engine for ``engine_spec`` (marker ``vllm_engine``), shared with other tests unless ``fresh=True``."""
    from .markers import engine_marker

    front, session = engine_marker(request.node).front, _session(request)
    if front == "serve":
        raise pytest.UsageError(
            f"{request.node.nodeid}: vllm_engine(front='serve') needs the fixture vllm_server, not vllm_engine"
        )
    get: Callable[..., Engine | AsyncEngine] = session.async_engine if front == "async" else session.engine
    for engine in _lent(request, vllm_env, engine_spec, front, get):
        engine.probe_file = request.path.with_name("probe.py")
        yield engine


@pytest.fixture
def vllm_server(request: pytest.FixtureRequest, vllm_env: Target, engine_spec: EngineSpec) -> Iterator[Server]:
    """A running ``vllm serve`` for ``engine_spec``: ``base_url``, ``api_key``, ``chat``, ``stream_chat``, ``post`` and an httpx ``client``."""
    yield from _lent(request, vllm_env, engine_spec, "serve", _session(request).server)


def _lent(
    request: pytest.FixtureRequest, target: Target, spec: EngineSpec, front: Front, get: Callable[..., E]
) -> Iterator[E]:
    """An engine or a server for one test: what it answers becomes evidence, and a failure ends it. ``get`` takes it from the session."""
    from .markers import engine_marker

    marker = engine_marker(request.node)
    evidence = evidence_of(request.node)
    evidence.phase = "start"
    asked, spec = spec, spec.laid_over(evidence.changes)
    evidence.control_used |= asked != spec
    evidence.spec = spec
    if evidence.strike is not None:
        evidence.strike.at_start()
    fresh = marker.fresh and evidence.strike is None  # of impostors only some end the engine
    engine = get(target, spec, user=request.node.nodeid, fresh=fresh, timeout=marker.timeout)
    evidence.replied("start")
    _note_gpu(request, engine.child.gpu)
    listening, engine.child.on_reply = engine.child.on_reply, evidence.replied
    engine.child.early = _session(request).early  # it may be shared with a test of another case
    engine.schemas = evidence.schemas
    engine.child.take()
    evidence.phase = "request"
    with evidence.strike.between(engine) if evidence.strike else contextlib.nullcontext():
        yield engine
    engine.child.on_reply = listening
    if evidence.error is not None:
        evidence.engine = engine.child.witness.parts()
        evidence.dead = not engine.child.alive or bool(engine.child.witness.lost())
    if evidence.feature and evidence.error is None:
        evidence.dossier = engine.child.dossier("an engine that works")
    try:
        if fresh:
            _charge(request, engine.stop())
        elif evidence.strike is not None:
            if evidence.strike.ends_the_engine or not engine.child.alive or engine.child.witness.lost():
                _session(request).drop(target, spec, front)
        elif evidence.error is not None or evidence.feature or not engine.child.alive:
            _session(request).drop(target, spec, front)
    finally:
        if evidence.strike is None:
            engine.scripts.check()  # what clients of the test's own have asked


def _note_gpu(request: pytest.FixtureRequest, gpu: Mapping[str, str]) -> None:
    """What the test ran on goes into the result file and into JUnit reports."""
    evidence_of(request.node).gpu = gpu
    request.node.user_properties += [(f"vllm_gpu_{name}", value) for name, value in gpu.items()]


@contextlib.contextmanager
def skipping() -> Iterator[None]:
    """What the version or the device cannot do skips the test, with the reason."""
    from ..errors import Unsupported

    try:
        yield
    except Unsupported as error:
        raise pytest.skip.Exception(str(error)) from error


def _charge(request: pytest.FixtureRequest, left: tuple[Leftover, ...]) -> None:
    if not left:
        return
    _session(request).charges.append((request.node.nodeid, left))
    if settings_of(request.config).leftovers == "fail":
        from ..processes.leftover import describe_leftovers

        pytest.fail(f"left behind by this test (removed):\n{describe_leftovers(left)}", pytrace=False)


def _session(request: pytest.FixtureRequest) -> Session:
    from .session import session_of

    return session_of(request.config)
