"""Which request of a client gets which scripted answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.engines.inputs.client_request import ClientRequest
from pytest_vllm_regress.engines.inputs.formats import CallFormat, FunctionCall
from pytest_vllm_regress.engines.inputs.script import Script, ScriptWatch
from pytest_vllm_regress.engines.inputs.script_rules import (
    NoAnswer,
    ScriptBook,
    ScriptedRequest,
    answers_from,
)
from pytest_vllm_regress.errors import ScriptError, Unsupported, UsageError
from pytest_vllm_regress.target_site.vllm_regress_target import script_format

HERMES = CallFormat("hermes", always_parsed=True)


@pytest.fixture
def book(tmp_path: Path) -> ScriptBook:
    return ScriptBook(ScriptWatch("", tmp_path / "notes", "sim"), HERMES)


def asking(*said: str, **body: Any) -> ClientRequest:
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(said)]
    return ClientRequest("/v1/chat/completions", {"messages": messages, **body})


def texts(book: ScriptBook, scripted: ScriptedRequest | None) -> list[str]:
    """Return what a worker makes each choice say."""
    assert scripted is not None
    named = script_format.named_in(f"chatcmpl-{scripted.request_id}-1f")
    assert named is not None and named[1] == scripted.request_id
    answers = script_format.decode((book.watch.folder / named[0]).read_text())
    return [
        "".join(chr(token) if isinstance(token, int) else token for ((token, _),) in answer.steps)
        for answer in answers
    ]


def test_a_list_answers_the_next_requests_in_order(book: ScriptBook) -> None:
    rule = book.add(["one", ("two", Script.text("zwei"))])
    book.add("three")
    first, second = book.take(asking("a")), book.take(asking("b"))
    assert (texts(book, first), texts(book, second)) == (["one"], ["two", "zwei"])
    assert first is not None and second is not None and first.request_id != second.request_id
    assert [request.text for request in rule.requests] == ["a", "b"]
    assert texts(book, book.take(asking("c"))) == ["three"]


def test_an_answer_whose_request_failed_goes_to_the_next(book: ScriptBook) -> None:
    rule = book.add(["one", "two"])
    failed = book.take(asking("a"))
    assert failed is not None
    book.close(failed, "/v1", succeeded=False)
    assert texts(book, book.take(asking("a"))) == ["one"] and len(rule.requests) == 1


def test_each_turn_of_a_conversation_keeps_its_answer(book: ScriptBook) -> None:
    book.add({"Paris": ["18", "warm"], "Rome": "25"})
    for _ in range(2):
        assert texts(book, book.take(asking("Paris?"))) == ["18"]
        assert texts(book, book.take(asking("Rome?"))) == ["25"]
        assert texts(book, book.take(asking("Paris?", "18", "so?"))) == ["warm"]
    assert book.take(asking("Oslo?")) is None
    with pytest.raises(NoAnswer, match=r"turn 1 .* 'Rome'"):
        book.take(asking("Rome?", "25", "so?"))


def test_a_function_answers_requests_or_leaves_them(book: ScriptBook) -> None:
    book.add(lambda request: request.text.upper() if request.text != "free" else None)
    assert texts(book, book.take(asking("a"))) == ["A"]
    assert book.take(asking("free")) is None
    book.clear()
    book.add(lambda request: 1 / 0)  # type: ignore[arg-type, return-value]
    with pytest.raises(NoAnswer, match="ZeroDivisionError"):
        book.take(asking("a"))


def test_spent_answers_are_an_error_of_the_test_and_of_the_request(book: ScriptBook) -> None:
    rule = book.add(["one", None])
    book.take(asking("a"))
    assert book.take(asking("a")) is None
    with pytest.raises(ScriptError, match="no scripted answer is left") as noted, rule:
        book.take(asking("a"))
    assert isinstance(noted.value.__cause__, NoAnswer)
    assert "same request has been answered before" in str(noted.value)
    assert book.is_empty and book.take(asking("a")) is None
    book.watch.check()


def test_only_a_repeated_request_is_told_of_turns(book: ScriptBook) -> None:
    book.add(["one"])
    book.take(asking("a"))
    with pytest.raises(NoAnswer, match=r"no scripted answer is left$"):
        book.take(asking("b"))


def test_other_requests_take_no_answer(book: ScriptBook) -> None:
    book.add(["one"])
    assert book.take(ClientRequest("/v1/models", method="GET")) is None
    assert book.take(ClientRequest("/tokenize", {"prompt": "a"})) is None
    with pytest.raises(NoAnswer, match="beam_search"):
        book.take(asking("a", use_beam_search=True))


def test_a_release_that_ignores_the_id_is_noticed(book: ScriptBook) -> None:
    book.add(["one", "two"])
    followed, ignored = book.take(asking("a")), book.take(asking("b"))
    assert followed is not None and ignored is not None
    followed.used.touch()
    book.close(followed, "/v1/any", succeeded=True)
    book.watch.check()
    assert not followed.used.exists()
    book.close(ignored, "/v1/any", succeeded=True)
    with pytest.raises(ScriptError, match="cannot be scripted"):
        book.watch.check()


def test_only_answers_of_blocks_outlive_the_test(book: ScriptBook) -> None:
    book.add("of the test")
    with book.add(lambda request: "of the block"):
        book.clear()
        assert texts(book, book.take(asking("a"))) == ["of the block"]
    assert book.is_empty


def test_engines_that_cannot_follow_scripts_refuse_answers(tmp_path: Path) -> None:
    book = ScriptBook(ScriptWatch("device cpu", tmp_path / "notes", "cpu"), HERMES)
    with pytest.raises(Unsupported, match="device cpu"):
        book.add("one")


@pytest.mark.parametrize("answers", [3, ["one", 3], [("one", 3)], {"a": 3}])
def test_what_is_no_answer_is_refused(book: ScriptBook, answers: Any) -> None:
    with pytest.raises(UsageError, match="is not an answer"):
        book.add(answers)


CALL = Script.text("well ").then(Script.tool_call("get", {"city": "Köln"}))


def test_calls_are_written_for_the_parser_and_the_choice(book: ScriptBook) -> None:
    book.add([CALL, CALL])
    text = 'well <tool_call>\n{"name": "get", "arguments": {"city": "Köln"}}\n</tool_call>'
    for choice in ("auto", "required"):
        said = texts(book, book.take(asking("a", tool_choice=choice)))[0]
        assert said.encode("latin-1").decode() == text


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("required", '[{"name": "get", "parameters": {"n": 1}}]'),
        ("named", '{"n": 1}'),
    ],
)
def test_a_server_that_takes_plain_json_gets_it(choice: Any, expected: str) -> None:
    write = CallFormat("", always_parsed=False)
    assert write([FunctionCall("get", {"n": 1})], choice) == expected
    with pytest.raises(UsageError, match="tool parser ''"):
        write([FunctionCall("get", {"n": 1})], "auto")


def test_a_call_has_no_place_in_a_prompt_or_before_text() -> None:
    with pytest.raises(UsageError, match=r"use server\.script"):
        CALL.prompt("Hello")
    with pytest.raises(UsageError, match="may follow"):
        CALL.then("text")
    assert len(CALL.then(Script.tool_call("get", {})).calls) == 2


def test_answers_can_be_written_as_json(book: ScriptBook) -> None:
    call = {"name": "get", "arguments": {"city": "Paris"}}
    book.add(answers_from(["one", ["a", "b"], {"text": "well ", "tool_calls": [call]}, None]))
    assert texts(book, book.take(asking("a"))) == ["one"]
    assert texts(book, book.take(asking("a"))) == ["a", "b"]
    assert "Paris" in texts(book, book.take(asking("a")))[0]
    assert book.take(asking("a")) is None
    book.clear()
    book.add(answers_from([{"value": {"n": 1}}]))
    assert texts(book, book.take(asking("a"))) == ['{"n":1}']
    book.clear()
    book.add(answers_from({"turns": {"Rome": ["25"]}}))
    book.add(answers_from({"template": "$turn: $text, $other"}))
    assert texts(book, book.take(asking("Rome"))) == ["25"]
    assert texts(book, book.take(asking("a"))) == ["0: a, $other"]


@pytest.mark.parametrize(
    "document", [3, {"say": "one"}, {}, {"tool_calls": [{"name": "get"}]}, [["a", 3]]]
)
def test_json_that_is_no_answer_is_refused(document: object) -> None:
    with pytest.raises(UsageError, match="script: "):
        answers_from(document)


SCHEMA = {
    "$defs": {"place": {"properties": {"city": {}, "zip": {}}}},
    "properties": {"n": {}, "places": {"items": {"$ref": "#/$defs/place"}}},
}


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        {"guided_json": SCHEMA},
        {"structured_outputs": {"json": SCHEMA}},
        {"text": {"format": {"schema": SCHEMA}}},
    ],
)
def test_a_value_is_written_as_the_schema_of_the_request_wants_it(
    book: ScriptBook, body: dict[str, Any]
) -> None:
    value = {"places": [{"zip": 7, "city": "Köln"}], "more": True, "n": 1}
    book.add([Script.text("so: ").then(Script.value(value)), Script.value(value)])
    written = '{"n":1,"places":[{"city":"Köln","zip":7}],"more":true}'
    said = texts(book, book.take(asking("a", **body)))
    assert said[0].encode("latin-1").decode() == f"so: {written}"
    unordered = texts(book, book.take(asking("a", response_format="json_object")))
    assert unordered[0].startswith('{"places":[{"zip":7,')


@pytest.mark.parametrize("nested", [True, False])
def test_arguments_of_a_call_are_in_the_order_of_the_tool(book: ScriptBook, nested: bool) -> None:
    function = {"name": "weather", "parameters": {"properties": {"city": {}, "day": {}}}}
    tool = {"type": "function", "function": function} if nested else function
    book.add(Script.tool_call("weather", {"day": 1, "city": "Paris"}))
    (said,) = texts(book, book.take(asking("a", tools=[tool])))
    assert '{"city": "Paris", "day": 1}' in said


def test_nothing_may_follow_a_value() -> None:
    with pytest.raises(UsageError, match="nothing may follow a value"):
        Script.value(1).then("text")
    with pytest.raises(UsageError, match="only a further tool call may follow a tool call"):
        Script.tool_call("f", {}).then(Script.value(1))
    assert '"' not in Script.value([1, 2]).prompt("p")
