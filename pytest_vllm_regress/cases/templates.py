"""First tests of new cases: by what a test starts and the kind of its failure, with the controls that a proof asks for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from ..errors import Kind

PLACEHOLDER = "words that only this failure prints"
"""The pattern of a new case whose failure is no assertion of its test: nothing says these words."""


@dataclasses.dataclass(frozen=True)
class Template:
    """A first test for one front. It passes everywhere: change it until it fails where it must.

    ``trigger`` names what the request of the report has; ``subject`` is its value, and ``control`` the one that leaves it out.
    """

    code: str
    trigger: str
    subject: int
    control: int
    pattern: str
    phase: str = "request"

    @property
    def omits(self) -> str:
        """What a control leg leaves out that only the test knows."""
        return f"{self.trigger} = {self.subject}"

    def test(self, name: str, *, leg: bool) -> str:
        """The test's code. ``leg``: it leaves its trigger out itself, in the control leg."""
        value = f'{self.subject} if vllm_leg == "subject" else {self.control}' if leg else f"{self.subject}"
        parameter = ", vllm_leg: str" if leg else ""
        return self.code.replace("NAME", name).replace("VALUE", value).replace(", LEG", parameter)

    def pattern_of(self, kind: str) -> str:
        """Of a wrong result the words that the test asserts with; of others nobody knows them yet."""
        return self.pattern if kind == Kind.WRONG_RESULT else PLACEHOLDER


TEMPLATES: Mapping[str, Template] = MappingProxyType(
    {
        "offline": Template(
            '''def test_NAME(vllm_engine: Engine, vllm_at_work: AtWork, LEG) -> None:
    """The request of the report, and what a sound engine answers."""
    (plain,) = vllm_engine.generate("Hello", {"max_tokens": 4})
    vllm_at_work("a plain request is answered", len(plain["outputs"]) == 1)
    n = VALUE
    (asked,) = vllm_engine.generate("Hello", {"max_tokens": 4, "n": n})
    count = len(asked["outputs"])
    assert count == n, f"expected {n} results, got {count}"
    vllm_engine.check()  # the engine lives on
''',
            trigger="n",
            subject=2,
            control=1,
            pattern=r"expected 2 results, got \d+",
        ),
        "async": Template(
            '''@pytest.mark.vllm_engine(front="async")
def test_NAME(vllm_engine: AsyncEngine, vllm_at_work: AtWork, LEG) -> None:
    """The request of the report, and what a sound engine streams."""
    (plain,) = vllm_engine.generate("Hello", {"max_tokens": 1})
    vllm_at_work("a plain request is answered", plain[-1]["finished"])
    tokens = VALUE
    (streamed,) = vllm_engine.generate("Hello", {"max_tokens": tokens, "ignore_eos": True}, output_kind="cumulative")
    count = len(streamed[-1]["outputs"][0]["token_ids"])
    assert count == tokens, f"expected {tokens} tokens, got {count}"
    vllm_engine.check()  # the engine lives on
''',
            trigger="tokens",
            subject=4,
            control=1,
            pattern=r"expected 4 tokens, got \d+",
        ),
        "serve": Template(
            '''@pytest.mark.vllm_engine(front="serve")
def test_NAME(vllm_server: Server, vllm_at_work: AtWork, LEG) -> None:
    """The request of the report, and what a sound server answers."""
    plain = {"model": vllm_server.model, "prompt": "Hello", "max_tokens": 4}
    vllm_at_work("a plain request is answered", vllm_server.post("/v1/completions", plain).status_code == 200)
    n = VALUE
    answer = vllm_server.post("/v1/completions", {**plain, "n": n})
    assert answer.status_code == 200, f"expected status 200, got {answer.status_code}: {answer.text[:500]}"
    count = len(answer.json()["choices"])
    assert count == n, f"expected {n} choices, got {count}"
    vllm_server.check()  # the server lives on
''',
            trigger="n",
            subject=2,
            control=1,
            pattern=r"expected 2 choices, got \d+",
        ),
        "probe": Template(
            '''def test_NAME(vllm_probe: Probe, vllm_at_work: AtWork, LEG) -> None:
    """What the report calls, and what a sound version returns."""
    vllm_at_work("the probe finds a vLLM", vllm_probe("version"))
    value = VALUE
    found = vllm_probe("look", value=value)
    assert found == value, f"expected the value {value}, got {found!r}"
''',
            trigger="value",
            subject=2,
            control=1,
            pattern="expected the value 2, got ",
            phase="probe",
        ),
        "finding": Template(
            '''def test_NAME(vllm_grammar: Callable[[str], None], LEG) -> None:
    """The question that found it, asked again."""
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
"""By what a test needs: an engine's front, or a probe alone."""
PROBE = '''"""Runs inside the target interpreter: import vllm here, and return what JSON can hold."""


def version():
    import vllm

    return vllm.__version__


def look(value):
    """What the report calls."""
    return value
'''
