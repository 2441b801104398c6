"""Parsers by themselves: how pieces are fed, how deltas are put together. vLLM and transformers are small stand-ins here; cases ask the real ones."""

from __future__ import annotations

import sys
import types
from types import SimpleNamespace as Value
from typing import Any

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target import Unsupported, parsers


class Tokenizer:
    """Characters are tokens."""

    all_special_tokens: tuple[str, ...] = ()

    def get_vocab(self) -> dict[str, int]:
        return {}

    def add_special_tokens(self, given: dict[str, list[str]]) -> None:
        self.special = given["additional_special_tokens"]

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [ord(each) for each in text]


def call(index: int, name: str | None = None, arguments: str | None = None) -> Value:
    return Value(index=index, function=Value(name=name, arguments=arguments))


class EchoParser:
    """Takes ``NAME(ARGUMENTS)``; a stream brings the name with the first piece, and arguments as they come."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.prev_tool_call_arr: list[dict[str, Any]] = []
        self.streamed_args_for_tool: list[str] = []
        self.steps: list[tuple[Any, ...]] = []

    def extract_tool_calls(self, text: str, request: Any) -> Value:
        name, _, rest = text.partition("(")
        return Value(content=None, tool_calls=[call(0, name, rest.rstrip(")"))])

    def extract_tool_calls_streaming(self, *arguments: Any) -> Value | None:
        before, now, new, ids_before, ids_now, ids_new, _ = arguments
        assert now == before + new and ids_now == ids_before + ids_new and ids_new == [ord(each) for each in new]
        if not before:
            return Value(content=None, tool_calls=[call(0, new.partition("(")[0], "")])
        if new == "-":
            return None
        sent = new.rstrip(")")
        self.prev_tool_call_arr = [{"arguments": "ab!"}]
        self.streamed_args_for_tool = ["ab"]
        return Value(content=None, tool_calls=[call(0, None, sent)])


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    class Manager:
        @staticmethod
        def get_tool_parser(name: str) -> type[EchoParser]:
            return {"echo": EchoParser}[name]

    modules: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": "9.9"},
        "vllm.entrypoints": {},
        "vllm.entrypoints.openai": {},
        "vllm.entrypoints.openai.tool_parsers": {"ToolParserManager": Manager},
        "vllm.entrypoints.openai.protocol": {
            "ChatCompletionRequest": lambda **fields: Value(**{"tools": None, **fields})
        },
        "transformers": {"AutoTokenizer": Value(from_pretrained=lambda path: Tokenizer())},
    }
    for name, content in modules.items():
        module = types.ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("stand_ins")
class TestToolCalls:
    def test_deltas_add_up_by_index_and_the_server_sends_what_is_left(self) -> None:
        found = parsers.tool_calls("somewhere", "echo", ["add(", "a", "b)"])
        assert found["whole"] == {"content": "", "calls": [{"name": "add", "arguments": "ab"}]}
        assert found["streamed"] == {"content": "", "calls": [{"name": "add", "arguments": "ab!"}]}

    def test_markers_are_never_cut(self) -> None:
        assert parsers._characters("a<b>c", ["<b>"]) == ["a", "<b>", "c"]
        assert parsers._characters("ab", []) == ["a", "b"]

    def test_nothing_is_left_to_send_when_the_last_delta_was_none(self) -> None:
        assert parsers.tool_calls("somewhere", "echo", ["add(", "a", "-"])["streamed"]["calls"][0]["arguments"] == "a"

    def test_a_vllm_without_parsers_is_told_before_it_refuses_tools(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuses(**fields: Any) -> None:
            raise ValueError("tools: extra inputs are not permitted")

        monkeypatch.setattr(sys.modules["vllm.entrypoints.openai.protocol"], "ChatCompletionRequest", refuses)
        for name in parsers._TOOL_MANAGERS:
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(Unsupported, match="this vLLM has none of"):
            parsers.tool_calls("somewhere", "echo", ["x"], [{"type": "function"}])

    def test_a_parser_that_this_vllm_does_not_have(self) -> None:
        with pytest.raises(Unsupported, match="no tool parser 'other'"):
            parsers.tool_calls("somewhere", "other", ["x"])
