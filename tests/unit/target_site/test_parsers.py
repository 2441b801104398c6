"""Parsers without an engine: feeding pieces and joining deltas. vLLM and transformers are small
stand-ins; cases use the real ones."""

from __future__ import annotations

import sys
import types
from types import SimpleNamespace as Value
from typing import Any

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target import Unsupported, parsers


class Tokenizer:
    """A tokenizer whose tokens are characters."""

    all_special_tokens: tuple[str, ...] = ()

    def get_vocab(self) -> dict[str, int]:
        return {}

    def add_special_tokens(self, given: dict[str, list[str]]) -> None:
        self.special = given["additional_special_tokens"]

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [ord(character) for character in text]


def call(index: int, name: str | None = None, arguments: str | None = None) -> Value:
    return Value(index=index, function=Value(name=name, arguments=arguments))


class EchoParser:
    """Parses ``NAME(ARGUMENTS)``.

    A stream has the name in its first piece and the arguments as they arrive.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.prev_tool_call_arr: list[dict[str, Any]] = []
        self.streamed_args_for_tool: list[str] = []
        self.steps: list[tuple[Any, ...]] = []

    def extract_tool_calls(self, text: str, request: Any) -> Value:
        name, _, rest = text.partition("(")
        return Value(content=None, tool_calls=[call(0, name, rest.rstrip(")"))])

    def extract_tool_calls_streaming(self, *arguments: Any) -> Value | None:
        before, now, new, ids_before, ids_now, ids_new, _ = arguments
        assert (
            now == before + new
            and ids_now == ids_before + ids_new
            and ids_new == [ord(character) for character in new]
        )
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
    def test_deltas_are_joined_by_index_and_the_server_sends_the_rest(self) -> None:
        calls = parsers.tool_calls("somewhere", "echo", ["add(", "a", "b)"])
        assert calls["whole"] == {"content": "", "calls": [{"name": "add", "arguments": "ab"}]}
        assert calls["streamed"] == {"content": "", "calls": [{"name": "add", "arguments": "ab!"}]}

    def test_markers_are_never_split(self) -> None:
        assert parsers._characters("a<b>c", ["<b>"]) == ["a", "<b>", "c"]
        assert parsers._characters("ab", []) == ["a", "b"]

    def test_nothing_is_added_if_the_last_delta_was_none(self) -> None:
        assert (
            parsers.tool_calls("somewhere", "echo", ["add(", "a", "-"])["streamed"]["calls"][0][
                "arguments"
            ]
            == "a"
        )

    def test_a_vllm_without_parsers_is_detected_before_it_rejects_tools(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuses(**fields: Any) -> None:
            raise ValueError("tools: extra inputs are not permitted")

        monkeypatch.setattr(
            sys.modules["vllm.entrypoints.openai.protocol"], "ChatCompletionRequest", refuses
        )
        for name in parsers._TOOL_MANAGERS:
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(Unsupported, match="this vLLM has none of"):
            parsers.tool_calls("somewhere", "echo", ["x"], [{"type": "function"}])

    def test_a_missing_parser_is_not_applicable(self) -> None:
        with pytest.raises(Unsupported, match="no tool parser 'other'"):
            parsers.tool_calls("somewhere", "other", ["x"])
