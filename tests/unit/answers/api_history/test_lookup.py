"""Questions about one release."""

from __future__ import annotations

import pytest

from pytest_vllm_regress.answers.api_history.lookup import Lookup, Missing, Unknown
from tests.unit.answers.api_history.releases import history_of

FILES = {
    "__init__.py": "from vllm.llm import LLM\nimport vllm.config",
    "config.py": "@dataclass\nclass EngineArgs:\n    model: str = 'm'\n    seed: int = 0\n@dataclass\nclass More(EngineArgs):\n    extra: int = 1",
    "lazy.py": "def __getattr__(name): ...",
    "inner/deep/a.py": "x = 1",
    "engine.py": """
        class Engine:
            limit = 3
            @classmethod
            def from_args(cls, args): ...
            def step(self, n, /, *, fast=False): ...
        class Child(Engine):
            def __getattr__(self, name): ...
        class Model(nn.Module): ...
        class Keys(TypedDict):
            one: int
        """,
    "llm.py": """
        from vllm.config import EngineArgs
        if TYPE_CHECKING:
            from vllm.engine import Engine
        class LLM:
            def __init__(self, model, **kwargs):
                args = EngineArgs(model=model, **kwargs)
                self.engine: Engine = make(args)
            def generate(self, prompts, params=None, *, use_tqdm=True): ...
            @staticmethod
            def helper(a): ...
        def plain(a, **kwargs): ...
        """,
}


@pytest.fixture(scope="module")
def lookup() -> Lookup:
    return Lookup(history_of({"1": FILES}), 0)


@pytest.mark.parametrize(
    ("path", "expected_path"),
    [
        ("vllm", "vllm"),
        ("vllm.inner.deep.a.x", "vllm.inner.deep.a.x"),  # packages without __init__.py
        ("vllm.LLM", "vllm.llm.LLM"),
        ("vllm.config.EngineArgs", "vllm.config.EngineArgs"),
        ("vllm.LLM.generate", "vllm.llm.LLM.generate"),
        ("vllm.LLM().engine", "vllm.engine.Engine"),
        ("vllm.LLM().engine.step", "vllm.engine.Engine.step"),
        ("vllm.engine.Engine.from_args().step", "vllm.engine.Engine.step"),
        ("vllm.engine.Child().limit", "vllm.engine.Engine.limit"),
    ],
)
def test_paths_are_followed(lookup: Lookup, path: str, expected_path: str) -> None:
    assert lookup.find(path).path == expected_path


@pytest.mark.parametrize(
    ("path", "owner", "name"),
    [
        ("vllm.nothing", "vllm", "nothing"),
        ("vllm.llm.Engine", "vllm.llm", "Engine"),  # imported for type checkers only
        ("vllm.LLM.nothing", "vllm.llm.LLM", "nothing"),
        ("vllm.LLM().engine.nothing", "vllm.engine.Engine", "nothing"),
    ],
)
def test_the_first_missing_part_is_named(lookup: Lookup, path: str, owner: str, name: str) -> None:
    with pytest.raises(Missing) as missing:
        lookup.find(path)
    assert missing.value.owner is not None
    assert (missing.value.owner.path, missing.value.name) == (owner, name)


@pytest.mark.parametrize(
    "path",
    [
        "vllm.engine.Child().anything",
        "vllm.engine.Model().forward",
        "vllm.LLM().generate().text",
        "vllm.__path__",
    ],
)
def test_what_the_sources_do_not_say_is_unknown(lookup: Lookup, path: str) -> None:
    with pytest.raises(Unknown):
        lookup.find(path)


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("vllm.LLM", ["model", "seed"]),  # passes its keywords on to EngineArgs
        ("vllm.LLM().generate", ["prompts", "params", "use_tqdm"]),
        ("vllm.LLM.generate", ["self", "prompts", "params", "use_tqdm"]),  # LLM.generate(llm, ...)
        ("vllm.LLM.helper", ["a"]),
        ("vllm.config.More", ["extra", "model", "seed"]),
        ("vllm.llm.plain", ["a", "kwargs"]),
    ],
)
def test_signatures(lookup: Lookup, path: str, names: list[str]) -> None:
    parameters = lookup.signature(lookup.find(path)).parameters
    assert sorted(parameter.name for parameter in parameters) == sorted(names)


def test_an_attribute_taken_from_a_parameter_has_the_class_of_that_field() -> None:
    files = {
        "config.py": "class Model:\n    length: int = 1\nclass Config:\n    model: Model",
        "engine.py": """
            from vllm.config import Config
            class Engine:
                def __init__(self, config: Config):
                    self.model = config.model
                    self.other = config.unknown
            """,
    }
    lookup = Lookup(history_of({"1.0": files}), 0)
    assert lookup.find("vllm.engine.Engine().model.length").name == "Model.length"
    assert lookup.find("vllm.engine.Engine().other").name == "Engine.other"
    with pytest.raises(Missing):
        lookup.find("vllm.engine.Engine().model.width")


def test_an_attribute_that_is_made_of_itself_has_no_known_class() -> None:
    source = "class A:\n    def __init__(self, a: A): self.x = a.x"
    history = history_of({"1": {"a.py": source}})
    assert Lookup(history, 0).find("vllm.a.A().x").name == "A.x"


def test_an_instance_of_the_v0_engine_may_be_one_of_v1() -> None:
    old = "class LLMEngine:\n    def both(self, a): ...\n    def step(self): ..."
    new = "class LLMEngine:\n    def both(self, a, b): ...\n    def other(self): ..."
    files = {"engine/llm_engine.py": old, "v1/engine/llm_engine.py": new}
    lookup = Lookup(history_of({"1": files}), 0)
    path = "vllm.engine.llm_engine.LLMEngine()"
    assert lookup.find(f"{path}.step").name == "LLMEngine.step"
    for unknown in (f"{path}.other", f"{path}.both"):
        with pytest.raises(Unknown):
            lookup.signature(lookup.find(unknown))
    with pytest.raises(Missing):
        lookup.find(f"{path}.neither")


def test_a_module_is_found_beside_an_alias_of_another_one() -> None:
    files = {
        "pkg/__init__.py": "from vllm.state import *",
        "pkg/kv/__init__.py": "",
        "pkg/kv/base.py": "class Base: ...",
        "agent.py": "x = 1",
        "state.py": "import vllm.agent as kv",
    }
    lookup = Lookup(history_of({"1": files}), 0)
    assert lookup.find("vllm.pkg.kv.base.Base").path == "vllm.pkg.kv.base.Base"


def test_a_class_below_in_another_module_of_the_package_may_be_meant() -> None:
    files = {
        "v1/worker/base.py": "class Base: ...",
        "v1/worker/gpu.py": "from vllm.v1.worker.base import Base\nclass Worker(Base):\n    runner = 1",
    }
    lookup = Lookup(history_of({"1": files}), 0)
    with pytest.raises(Unknown):
        lookup.find("vllm.v1.worker.base.Base().runner")
    with pytest.raises(Missing):
        lookup.find("vllm.v1.worker.base.Base().nothing")


def test_what_the_history_leaves_out_is_unknown() -> None:
    layer = "vllm.model_executor.layers.a"
    first = "class A:\n    def __init__(self): self.size = 1\n    def f(self): ..."
    history = history_of(
        {
            "1": {"model_executor/layers/a.py": f"{first}\nKind = A | None"},
            "2": {"model_executor/layers/a.py": "class A:\n    size: int\nKind = A"},
            "3": {"config.py": "from dataclasses import replace"},
            "4": {"config.py": "def replace(x): ..."},
        }
    )
    for number, path in (
        (0, f"{layer}.A().size"),
        (0, f"{layer}.Kind"),
        (2, "vllm.config.replace"),
    ):
        with pytest.raises(Unknown):
            Lookup(history, number).find(path)
    with pytest.raises(Missing):
        Lookup(history, 1).find(f"{layer}.A().f")


def test_a_call_of_a_typed_dict_takes_any_keywords(lookup: Lookup) -> None:
    with pytest.raises(Unknown):
        lookup.signature(lookup.find("vllm.engine.Keys"))
