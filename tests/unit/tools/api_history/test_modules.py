"""The symbols of a module, from its source."""

from __future__ import annotations

import ast
import textwrap

import pytest

from pytest_vllm_regress.answers.api_history.definitions import (
    Signature,
    absolute,
    bases_of,
    module_name,
    signature_of,
)
from tools.api_history.modules import Module, read_module


def read(source: str, path: str = "vllm/sample.py") -> Module:
    return read_module(ast.parse(textwrap.dedent(source)), path)


def signature(text: str) -> Signature:
    parsed = signature_of(text)
    assert parsed is not None
    return parsed


def test_functions_have_parameters_kinds_and_defaults() -> None:
    symbols = read(
        "async def f(a, /, b=1, *c, d, e='x', **g): ...\ndef h(*, k: int = 2) -> str: ..."
    ).symbols
    assert symbols == {"f": "async def(a, /, b=1, *c, d, e='x', **g)", "h": "def(*, k=2)"}
    kinds = {p.name: (p.kind, p.default) for p in signature(symbols["f"]).parameters}
    assert kinds == {
        "a": ("positional", None),
        "b": ("either", "1"),
        "c": ("args", None),
        "d": ("keyword", None),
        "e": ("keyword", "'x'"),
        "g": ("kwargs", None),
    }


def test_a_name_that_a_function_assigns_exists_without_a_value() -> None:
    source = "A: int\nB: int\ndef init():\n    global A\n    A = 1"
    assert read(source).symbols == {"init": "def()", "A": "="}


def test_a_long_default_stays_parseable() -> None:
    symbols = read(f"def f(a={[*range(100)]}, b={'x' * 500!r}): ...").symbols
    assert [p.default for p in signature(symbols["f"]).parameters] == ["...", "..."]


def test_classes_have_bases_fields_members_and_attributes_that_methods_assign() -> None:
    symbols = read(
        """
        @dataclass
        class Config(Base[int], other.Mixin):
            size: int = 4
            kind = "auto"
            @classmethod
            def make(cls, **kwargs): return Config(**kwargs)
            @property
            def name(self): ...
            def start(self, engine: Optional[Engine] = None):
                self.engine = engine
                if True:
                    self.core = Core.make()
                self.other, self.more = 1, 2
        """
    ).symbols
    assert symbols == {
        "Config": "@dataclass class(Base, other.Mixin)",
        "Config.size": ": int = 4",
        "Config.kind": "= 'auto'",
        "Config.make": "@classmethod def(cls, **kwargs) > Config",
        "Config.name": "@property def(self)",
        "Config.start": "def(self, engine=None)",
        "Config.engine": ".: Engine",
        "Config.core": ".: Core",
        "Config.other": ".",
        "Config.more": ".",
    }
    assert bases_of(symbols["Config"]) == ("Base", "other.Mixin")


def test_imports_from_vllm_are_aliases_and_others_are_left_out() -> None:
    module = read(
        """
        import os, vllm.envs as envs
        from torch import nn
        from vllm.config import Config as C
        from .inner import *
        from ..sibling import Name
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from vllm.types import OnlyForTypes
        """,
        "vllm/package/__init__.py",
    )
    assert module.symbols == {
        "envs": "< vllm.envs",
        "C": "< vllm.config:Config",
        "Name": "< vllm.sibling:Name",
        "OnlyForTypes": "?< vllm.types:OnlyForTypes",
    }
    assert module.stars == ["vllm.package.inner"]


def test_names_that_getattr_imports_exist() -> None:
    symbols = read(
        """
        if TYPE_CHECKING:
            from vllm.entrypoints.llm import LLM
        MODULE_ATTRS = {"LLM": ".entrypoints.llm:LLM", "limit": 3}
        def __getattr__(name): ...
        """,
        "vllm/__init__.py",
    ).symbols
    assert symbols["LLM"] == "< vllm.entrypoints.llm:LLM"
    assert "limit" not in symbols


def test_definitions_in_branches_count_and_a_fallback_does_not_hide_the_class() -> None:
    symbols = read(
        "try:\n    class A: ...\nexcept ImportError:\n    A = None\nif X:\n    def f(): ..."
    ).symbols
    assert symbols == {"A": "class()", "f": "def()"}


@pytest.mark.parametrize(
    ("source", "name", "message"),
    [
        ("class C:\n    @deprecated('use D')\n    def f(self): ...", "C.f", "deprecated: use D"),
        (
            "@deprecate_kwargs('a', additional_message='use b instead')\ndef f(a): ...",
            "f",
            "deprecated arguments: a use b instead",
        ),
        (
            "def f():\n    logger.warning('x is deprecated and '\n 'will be removed in v0.9')",
            "f",
            None,
        ),
        (
            "_M = ('--old is deprecated. ' 'Use --new instead.')",
            "_M",
            "--old is deprecated. Use --new instead.",
        ),
        ("class C:\n    a: int = 1\n    '''Deprecated: will be removed in v1.'''", "C.a", None),
    ],
)
def test_deprecations_are_kept_with_their_place(
    source: str, name: str, message: str | None
) -> None:
    deprecations = read(source).deprecations
    assert list(deprecations.values()) == [name]
    assert message is None or list(deprecations) == [message]


def test_module_names_and_relative_imports() -> None:
    assert module_name("vllm/a/__init__.py") == "vllm.a"
    assert module_name("vllm/a/b.py") == "vllm.a.b"
    assert absolute("vllm.a.b", False, 1, "c") == "vllm.a.c"
    assert absolute("vllm.a", True, 1, "c") == "vllm.a.c"
    assert absolute("vllm.a.b", False, 2, None) == "vllm"


def test_keywords_that_a_function_takes_out_of_the_rest_are_accepted() -> None:
    source = """
    class LLM:
        def __init__(self, model, **kwargs):
            if "gone" in kwargs:
                kwargs.pop("gone")
            del kwargs["also"]
            kwargs.get("passed")
            other.pop("other")
            EngineArgs(model=model, **kwargs)
    def f(**kwargs):
        kwargs.pop("any")
    """
    symbols = read(source).symbols
    assert (
        symbols["LLM.__init__"] == "def(self, model, *, also=..., gone=..., **kwargs) > EngineArgs"
    )
    assert symbols["f"] == "def(**kwargs)"


def test_an_import_counts_where_another_branch_has_a_value_that_is_left_out() -> None:
    source = """
    if HAS_IT:
        from vllm.fast import run, fuse
    else:
        run = lambda *args: fail("run")
    fuse = wrap(fuse)
    """
    assert read(source).symbols == {"run": "=", "fuse": "="}
    in_brief = read(source, "vllm/model_executor/layers/fused.py").symbols
    assert in_brief == {"run": "< vllm.fast:run", "fuse": "="}
