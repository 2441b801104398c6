"""Templates for the tests of new cases, with the controls that a proof needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from ...defaults import PHASES
from ...errors import Kind, UsageError

PLACEHOLDER = "words that only this failure prints"
"""Pattern of a new case whose failure is not an assertion of its test.

Nothing prints these words.
"""


@dataclasses.dataclass(frozen=True)
class Template:
    """Test template of one front. The test passes everywhere until its author changes it.

    ``trigger``: the variable that triggers the failure; ``subject``: its value; ``control``: the
    value that leaves it out.
    """

    code: str
    trigger: str
    subject: int
    control: int
    pattern: str
    phase: str = "request"

    @property
    def omits(self) -> str:
        """Return what the control leg leaves out, if the test does it itself."""
        return f"{self.trigger} = {self.subject}"

    def test(self, name: str, *, leg: bool) -> str:
        """Return the code of the test.

        ``leg``: the test leaves out its trigger itself in the control leg.
        """
        value = (
            f'{self.subject} if vllm_leg == "subject" else {self.control}'
            if leg
            else f"{self.subject}"
        )
        parameter = ", vllm_leg: str" if leg else ""
        return self.code.replace("NAME", name).replace("VALUE", value).replace(", LEG", parameter)

    def pattern_of(self, kind: str) -> str:
        """Return the message of the test's assertion for a wrong result, else a placeholder."""
        return self.pattern if kind == Kind.WRONG_RESULT else PLACEHOLDER


TEMPLATES: Mapping[str, Template] = MappingProxyType(
    {
        "offline": Template(
            '''def test_NAME(vllm_engine: Engine, vllm_at_work: AtWork, LEG) -> None:
    """Send the reported request and assert what a correct engine answers."""
    (plain,) = vllm_engine.generate("Hello", {"max_tokens": 4})
    vllm_at_work("a plain request is answered", len(plain["outputs"]) == 1)
    n = VALUE
    (result,) = vllm_engine.generate("Hello", {"max_tokens": 4, "n": n})
    count = len(result["outputs"])
    assert count == n, f"expected {n} results, got {count}"
    vllm_engine.check()  # the engine still works
''',
            trigger="n",
            subject=2,
            control=1,
            pattern=r"expected 2 results, got \d+",
        ),
        "async": Template(
            '''@pytest.mark.vllm_engine(front="async")
def test_NAME(vllm_engine: AsyncEngine, vllm_at_work: AtWork, LEG) -> None:
    """Send the reported request and assert what a correct engine streams."""
    (plain,) = vllm_engine.generate("Hello", {"max_tokens": 1})
    vllm_at_work("a plain request is answered", plain[-1]["finished"])
    tokens = VALUE
    (streamed,) = vllm_engine.generate("Hello", {"max_tokens": tokens, "ignore_eos": True}, output_kind="cumulative")
    count = len(streamed[-1]["outputs"][0]["token_ids"])
    assert count == tokens, f"expected {tokens} tokens, got {count}"
    vllm_engine.check()  # the engine still works
''',
            trigger="tokens",
            subject=4,
            control=1,
            pattern=r"expected 4 tokens, got \d+",
        ),
        "serve": Template(
            '''@pytest.mark.vllm_engine(front="serve")
def test_NAME(vllm_server: Server, vllm_at_work: AtWork, LEG) -> None:
    """Send the reported request and assert what a correct server answers."""
    plain = {"model": vllm_server.model, "prompt": "Hello", "max_tokens": 4}
    vllm_at_work("a plain request is answered", vllm_server.post("/v1/completions", plain).status_code == 200)
    n = VALUE
    answer = vllm_server.post("/v1/completions", {**plain, "n": n})
    assert answer.status_code == 200, f"expected status 200, got {answer.status_code}: {answer.text[:500]}"
    count = len(answer.json()["choices"])
    assert count == n, f"expected {n} choices, got {count}"
    vllm_server.check()  # the server still works
''',
            trigger="n",
            subject=2,
            control=1,
            pattern=r"expected 2 choices, got \d+",
        ),
        "request": Template(
            '''@pytest.mark.vllm_engine(
    front="serve",
    extra={"served_model_name": "m", "enable_lora": True},
    server_options={"enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
    env={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_SERVER_DEV_MODE": "1"},
)
def test_NAME(vllm_server: Server, vllm_at_work: AtWork, LEG) -> None:
    """Send the request of the finding, and assert that the server answers or refuses it and lives on."""
    plain = {"model": "m", "prompt": "Hello", "max_tokens": 4}
    vllm_at_work("a plain request is answered", vllm_server.post("/v1/completions", plain).status_code == 200)
    question = json.loads(Path(__file__).with_name("finding.json").read_text())["question"]
    times = VALUE
    for _ in range(times):
        answer = vllm_server.client.request(
            question["method"],
            question["path"],
            content=question["body"],
            headers={"Content-Type": "application/json"},
            timeout=60,
        )
        assert answer.status_code < 500, f"expected no server error, got {answer.status_code}: {answer.text[:500]}"
    vllm_server.check()  # the server still works
''',
            trigger="times",
            subject=1,
            control=0,
            pattern=r"expected no server error, got 5\d\d",
        ),
        "probe": Template(
            '''def test_NAME(vllm_probe: Probe, vllm_at_work: AtWork, LEG) -> None:
    """Call what the report calls and assert what a correct version returns."""
    vllm_at_work("the probe finds the package", vllm_probe("version"))
    value = VALUE
    result = vllm_probe("look", value=value)
    assert result == value, f"expected the value {value}, got {result!r}"
''',
            trigger="value",
            subject=2,
            control=1,
            pattern="expected the value 2, got ",
            phase="probe",
        ),
        "finding": Template(
            '''def test_NAME(vllm_grammar: Callable[[str], None], LEG) -> None:
    """Repeat the request that found the failure."""
    vllm_grammar("finding.json")
''',
            trigger="finding",
            subject=1,
            control=0,
            pattern=PLACEHOLDER,
            phase="probe",
        ),
    }
)
"""Templates by what a test needs: the front of an engine, or only a probe."""
_READY = Template(
    '''@pytest.fixture
def engine_spec(engine_spec: EngineSpec, LEG) -> EngineSpec:
    """Return the engine with the reported arguments."""
    max_num_seqs = VALUE
    return engine_spec.merged_with({"extra": {"max_num_seqs": max_num_seqs}})


@pytest.mark.vllm_engine(front="serve")
def test_NAME(vllm_server: Server, vllm_at_work: AtWork) -> None:
    """Start a server with these arguments. A correct one starts and answers."""
    body = {"model": vllm_server.model, "prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
    answer = vllm_server.post("/v1/completions", body)
    vllm_at_work("the server answers", answer.status_code == 200 and any(c["text"] for c in answer.json()["choices"]))
    vllm_server.check()  # the server still works
''',
    trigger="max_num_seqs",
    subject=2,
    control=1,
    pattern=PLACEHOLDER,
    phase="ready",
)
_STOP = Template(
    '''@pytest.mark.vllm_engine(front="serve")
def test_NAME(vllm_server: Server, vllm_at_work: AtWork, LEG) -> None:
    """Send the reported signal and assert how a correct server ends."""
    body = {"model": vllm_server.model, "prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
    requests = VALUE
    for _ in range(requests):
        answer = vllm_server.post("/v1/completions", body)
        answered = answer.status_code == 200 and any(choice["text"] for choice in answer.json()["choices"])
        vllm_at_work("a request is answered", answered)
    vllm_server.signal(signal.SIGTERM)
    status = vllm_server.wait_for_exit(60, all_processes=True)
    assert status == 0, f"expected exit status 0 after {requests} requests, got {status}"
''',
    trigger="requests",
    subject=2,
    control=1,
    pattern=r"expected exit status 0 after 2 requests, got -?\d+",
    phase="stop",
)
OUTSIDE_REQUESTS: Mapping[str, Template] = MappingProxyType({"ready": _READY, "stop": _STOP})
"""Templates of the front serve for a server that does not start, and for its end, by phase."""
_IMPORT_NAMES = MappingProxyType(
    {"lm-format-enforcer": "lmformatenforcer", "outlines-core": "outlines_core"}
)
"""Import names of structured-output packages whose distribution has another name."""


_ENGINE_PHASES = ("import", "start", "request", "stop")
_PHASES = MappingProxyType(
    {
        "offline": _ENGINE_PHASES,
        "async": _ENGINE_PHASES,
        "serve": ("import", "ready", "request", "stop"),
        "request": ("request",),
        "probe": ("import", "probe"),
        "finding": ("probe",),
    }
)
"""Phases in which an engine, server or probe of each front can fail.

A server has no phase start: the harness waits for it until it is ready.
"""
_WITHOUT: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {Kind.WRONG_RESULT: ("import", "start", "ready"), Kind.EXCEPTION: ("ready",)}
)
"""Phases in which a kind of failure cannot occur: no assertion comes before the engine runs, and a
server that fails to start raises no exception."""
_NOT_READY = (
    ". A server that does not start either ends or hangs while the harness waits until it is ready: use --phase ready with --kind crash, hang "
    "or engine-death"
)


def phases_of(front: str, kind: str) -> tuple[str, ...]:
    """Return the phases in which a test of a front can show a failure of this kind."""
    never = _WITHOUT.get(kind, ())
    return tuple(phase for phase in _PHASES[front] if phase not in never)


def check_phase(front: str, phase: str, kind: str) -> None:
    """Raise ``UsageError`` if no test of a front shows a failure of this kind in this phase.

    Unknown phases are left to the case file's check.
    """
    allowed = phases_of(front, kind)
    if phase not in PHASES or phase in allowed:
        return
    hint = _NOT_READY if front == "serve" and phase in ("start", "ready") else ""
    raise UsageError(
        f"--front {front} --phase {phase} --kind {kind}: phases with this front and kind are {', '.join(allowed)}{hint}"
    )


def template_for(front: str, phase: str) -> Template:
    """Return the template of a front; for a server that of the phase, if the failure belongs to its
    start or its end."""
    outside = OUTSIDE_REQUESTS.get(phase) if front == "serve" else None
    return outside or TEMPLATES[front]


def probe_code(component: str) -> str:
    """Return the first ``probe.py`` of a case: of a structured-output package, or of vLLM if
    ``component`` is empty."""
    distribution = component or "vllm"
    module = _IMPORT_NAMES.get(distribution, distribution)
    version = f'importlib.metadata.version("{component}")' if component else "vllm.__version__"
    return f'''"""Runs in the target interpreter. Import {module} inside functions and return JSON values."""

{"import importlib.metadata" + chr(10) * 2 if component else ""}
def version():
    import {module}{"  # noqa: F401" if component else ""}

    return {version}


def look(value):
    """Call what the report calls."""
    return value
'''
