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
