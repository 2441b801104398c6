"""Streams through a server's parsers, without vLLM: what the server does with two parsers and with
the last delta, and what a client adds up."""

from __future__ import annotations

import dataclasses
import sys
import types
from typing import Any

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target.dialect import parsing
from pytest_vllm_regress.target_site.vllm_regress_target.dialect.parsing import (
    Client,
    Delta,
    Separate,
)
from pytest_vllm_regress.target_site.vllm_regress_target.hosts import parsing as host

THINK_END = 7


@dataclasses.dataclass
class Function:
    name: str | None = None
    arguments: str | None = None

    def model_dump(self, exclude_none: bool) -> dict[str, str]:
        return {key: value for key, value in dataclasses.asdict(self).items() if value is not None}


@dataclasses.dataclass
class Call:
    index: int
    function: Any


@dataclasses.dataclass
class Message:
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Call] = dataclasses.field(default_factory=list)


class Tool:
    """Answers each delta with the calls of ``script``, in turn."""

    script: list[Any] = []  # noqa: RUF012

    def __init__(self, encoder: Any) -> None:
        self.prev_tool_call_arr = [{"arguments": {"a": 1}}]
        self.streamed_args_for_tool = [""]
        self.deltas: list[str] = []
        self._answers = iter(self.script)

    def extract_tool_calls_streaming(self, **arguments: Any) -> Message | None:
        self.deltas.append(arguments["delta_text"])
        answer: Message | None = next(self._answers)
        return answer


class Echo(Tool):
    def extract_tool_calls_streaming(self, **arguments: Any) -> Message | None:
        return Message(content=f"<{arguments['delta_text']}>")


class Thinker:
    def __init__(self, encoder: Any) -> None:
        pass

    def extract_reasoning_streaming(
        self, before: str, text: str, delta: str, *ids: list[int]
    ) -> Message:
        thought, _, content = delta.partition("|")
        return Message(reasoning=thought, content=content or None)

    def is_reasoning_end(self, ids: list[int]) -> bool:
        return THINK_END in ids

    def extract_content_ids(self, ids: list[int]) -> list[int]:
        return ids[ids.index(THINK_END) + 1 :]


class NewServer:
    def stream(self) -> None:
        delta_message = DeltaMessage()  # type: ignore[name-defined]  # noqa: F821, F841


class OldServer:
    def stream(self) -> None:
        pass


@pytest.fixture(params=[NewServer])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vLLM of before ``parse_delta``."""
    module = types.ModuleType("vllm")
    module.OpenAIServingChat = request.param  # type: ignore[attr-defined]
    module.DeltaMessage, module.DeltaFunctionCall, module.DeltaToolCall = Message, Function, Call  # type: ignore[attr-defined]
    for name in ("serving_chat", "protocol"):
        monkeypatch.setitem(sys.modules, f"vllm.entrypoints.openai.{name}", module)
    for name in ("vllm", "vllm.entrypoints", "vllm.entrypoints.openai"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))


def deltas(*texts: str) -> list[Delta]:
    return [
        Delta(text, [ord(letter) for letter in text], at == len(texts) - 1)
        for at, text in enumerate(texts)
    ]


def streamed(script: list[Any], *texts: str) -> dict[str, Any]:
    tool = type("Scripted", (Tool,), {"script": script})
    answer: dict[str, Any] = Separate(tool, None, None, []).stream(deltas(*texts), None)
    return answer


@pytest.mark.usefixtures("server")
def test_the_last_delta_with_arguments_is_replaced_by_the_rest_of_the_call() -> None:
    whole = Message(tool_calls=[Call(0, Function("add", '{"a"'))])
    assert streamed([whole], "x")["calls"] == [["", '{"a": 1}']]
    begun = Message(tool_calls=[Call(0, Function("add"))])
    assert streamed([begun, Message(tool_calls=[Call(0, Function(arguments='{"a"'))])], "x", "y")[
        "calls"
    ] == [["add", '{"a": 1}']]


@pytest.mark.usefixtures("server")
def test_a_last_delta_without_arguments_stays() -> None:
    assert streamed([Message(content="a"), None], "x", "") == {
        "reasoning": "",
        "content": "a",
        "calls": [],
        "finished": True,
    }


@pytest.mark.parametrize("server", [OldServer], indirect=True)
@pytest.mark.usefixtures("server")
def test_an_old_server_does_not_end_a_stream_whose_last_delta_is_none() -> None:
    assert streamed([Message(content="a"), None], "x", "")["finished"] is False
    assert streamed([None, Message(content="a")], "x", "y")["finished"] is True


@pytest.mark.usefixtures("server")
def test_calls_are_parsed_after_the_reasoning_with_the_text_that_came_with_its_end() -> None:
    ids = [Delta("I t", [1], False), Delta("hink|a", [THINK_END, 2], False), Delta("b", [3], True)]
    answer = Separate(Echo, Thinker, None, []).stream(ids, None)
    assert (answer["reasoning"], answer["content"]) == ("I think", "<ab>")


@pytest.mark.usefixtures("server")
def test_a_parser_that_removes_options_does_not_take_them_from_the_request() -> None:
    class Removing(Thinker):
        def __init__(self, encoder: Any, **options: Any) -> None:
            options["chat_template_kwargs"].pop("thinking")

    request = types.SimpleNamespace(chat_template_kwargs={"thinking": True})
    for _ in range(2):
        assert Separate(None, Removing, None, []).stream(deltas("a|b"), request)["content"] == "b"


def test_a_client_adds_calls_up_by_their_index() -> None:
    client = Client()
    client.add(Message(tool_calls=[Call(1, Function("b", "{")), Call(0, {"name": "a"})]))
    client.add(None)
    client.add(Message(tool_calls=[Call(1, Function(arguments="}"))]))
    assert client.answer()["calls"] == [["a", ""], ["b", "{}"]]


def test_the_end_comes_alone_or_with_the_last_piece() -> None:
    class Encoder:
        def ids(self, text: str) -> list[int]:
            return [len(text)]

    encoder: Any = Encoder()
    alone = host._deltas(encoder, ["a", "bc"], True)
    assert [(delta.text, delta.last) for delta in alone] == [
        ("a", False),
        ("bc", False),
        ("", True),
    ]
    joined = host._deltas(encoder, ["a", "bc"], False)
    assert [(delta.text, delta.ids, delta.last) for delta in joined] == [
        ("a", [1], False),
        ("bc", [2, 10], True),
    ]


def test_a_parser_says_whether_it_reads_calls_that_are_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsers = {
        "old": object(),
        "json": types.SimpleNamespace(supports_required_and_named=True),
        "own": types.SimpleNamespace(supports_required_and_named=False),
    }
    monkeypatch.setattr(parsing, "parser_class", lambda kind, name: parsers[name])
    answers = [parsing.reads_every_call(name) for name in ("old", "json", "own", "unknown")]
    assert answers == [False, False, True, False]
