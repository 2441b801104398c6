"""Further routes of the server, and chat completions with tools, reasoning and images."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_vllm_regress import RemoteError, Script, Server, png_url

pytestmark = pytest.mark.vllm_engine(front="serve", generation=["V0", "V1"])
TOOLS = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


@pytest.mark.vllm_engine(server_options=TOOLS)
@pytest.mark.parametrize("way", ["whole", "stream"])
def test_tool_choice_auto(vllm_server: Server, way: str) -> None:
    options: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "auto", "max_tokens": 120}
    (answer,) = vllm_server.answers(
        user(Script.text(CALL).prompt("Weather?")), stream=way == "stream", **options
    )
    (call,) = answer.tool_calls
    assert call.name == "weather" and json.loads(call.arguments) == {"city": "Oslo"}


@pytest.mark.vllm_engine(server_options=TOOLS)
@pytest.mark.parametrize("way", ["whole", "stream"])
@pytest.mark.parametrize("choice", ["named", "required"])
def test_tool_choice(vllm_server: Server, choice: str, way: str) -> None:
    """The grammar alone makes the model call the tool, without a script. Whether the arguments
    match the schema depends on the version.

    The seed fixes whether a call contains the blanks that some versions lose.
    """
    named = {"type": "function", "function": {"name": "weather"}}
    options: dict[str, Any] = {
        "tools": [WEATHER],
        "tool_choice": named if choice == "named" else choice,
    }
    options |= {"logit_bias": single_call_bias(vllm_server), "seed": 0}
    with required_or_skip():
        answers = vllm_server.answers(
            user("Weather?"), stream=way == "stream", n=4, max_tokens=200, **options
        )
    assert "length" not in {answer.finish_reason for answer in answers}
    calls = [call for answer in answers for call in answer.tool_calls]
    assert len(calls) >= 4
    assert {call.name for call in calls} == {"weather"}
    for call in calls:
        json.loads(call.arguments)


@pytest.mark.vllm_engine(server_options=TOOLS)
@pytest.mark.parametrize("way", ["whole", "stream"])
def test_tool_choice_required_cut_off(vllm_server: Server, way: str) -> None:
    """A call that ``max_tokens`` truncates is an answer with finish reason "length", not an error."""
    options: dict[str, Any] = {
        "tools": [WEATHER],
        "tool_choice": "required",
        "max_tokens": 12,
        "seed": 0,
    }
    with required_or_skip():
        (answer,) = vllm_server.answers(user("Weather?"), stream=way == "stream", **options)
    assert answer.finish_reason == "length"


def single_call_bias(server: Server) -> dict[str, int]:
    """Return a logit_bias that ends the answer after its first call. Otherwise ``max_tokens`` would
    truncate some answers at random.

    Depending on the version, calls are a JSON list, or each is enclosed in its parser's tags. The
    bias for a bracket is small, because with a large one, strings that the grammar does not
    restrict would never end.
    """
    (more,), (close,), (end,) = map(server.tokenize, ("},", "]", "<|im_end|>"))
    return {str(more): -100, str(close): 3, str(end): 100}


@contextlib.contextmanager
def required_or_skip() -> Iterator[None]:
    """Skip the test if vLLM does not support the tool_choice "required"."""
    try:
        yield
    except RemoteError as error:
        if "must either be a named tool" in str(error):
            pytest.skip("this vLLM takes no tool_choice 'required'")
        raise


@pytest.mark.vllm_engine(server_options=TOOLS)
def test_tools_not_called(vllm_server: Server) -> None:
    messages = user(Script.text("It rains.").prompt("Weather?"))
    (answer,) = vllm_server.answers(messages, tools=[WEATHER], tool_choice="auto", max_tokens=30)
    assert (
        answer.content == "It rains." and not answer.tool_calls and answer.finish_reason == "stop"
    )


@pytest.mark.vllm_engine(server_options={"reasoning_parser": "deepseek_r1"})
@pytest.mark.parametrize("way", ["whole", "stream"])
def test_reasoning(vllm_server: Server, way: str) -> None:
    messages = user(Script.text("two and two</think>four").prompt("2 + 2?"))
    (answer,) = vllm_server.answers(messages, stream=way == "stream", max_tokens=40)
    assert (answer.reasoning, answer.content) == ("two and two", "four")


@pytest.mark.vllm_engine(
    model="vision", max_model_len=1024, extra={"limit_mm_per_prompt": {"image": 2}}
)
def test_several_images(vllm_server: Server) -> None:
    def ask(count: int) -> Any:
        images = [
            {"type": "image_url", "image_url": {"url": png_url(56, 28 * (1 + index))}}
            for index in range(count)
        ]
        content = [*images, {"type": "text", "text": "What are these?"}]
        body = {"model": vllm_server.model, "messages": user(content), "max_tokens": 4}
        return vllm_server.post("/v1/chat/completions", body)

    single, pair, refused = (ask(count) for count in (1, 2, 3))
    assert single.json()["usage"]["prompt_tokens"] < pair.json()["usage"]["prompt_tokens"]
    assert refused.status_code == 400


def test_responses(vllm_server: Server) -> None:
    answer = vllm_server.respond(Script.text("yes").prompt("Are you there?"), max_output_tokens=20)
    assert answer["status"] == "completed" and answer["output"][-1]["content"][0]["text"] == "yes"


def test_responses_with_instructions(vllm_server: Server) -> None:
    answer = vllm_server.respond("Hello", instructions="Be brief.", max_output_tokens=3)
    assert answer["usage"]["output_tokens"] <= 3 and answer["usage"]["input_tokens"] > len(
        "Be brief.Hello"
    )


def test_tokenize_and_detokenize(vllm_server: Server) -> None:
    text = "Gr\u00fc\u00dfe, 12 \U0001f600"
    tokens = vllm_server.tokenize(text)
    assert vllm_server.detokenize(tokens) == text


def test_tokenize_a_conversation(vllm_server: Server) -> None:
    tokens = vllm_server.tokenize(user("Hello"), add_generation_prompt=True)
    assert vllm_server.detokenize(tokens).replace("<|im_end|>", "").split() == [
        *("<|im_start|>user", "Hello"),
        "<|im_start|>assistant",
    ]


def test_metrics(vllm_server: Server) -> None:
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    before = vllm_server.metrics()
    vllm_server.chat(user("Hello"), max_tokens=7, ignore_eos=True)
    vllm_server.check()  # the metrics of a request may lag one step behind its answer
    after = vllm_server.metrics()
    prompt, generation = (after.total(name) - (sum(before.of(name).values())) for name in names)
    assert prompt > len("Hello") and generation >= 7


def test_usage_in_a_stream(vllm_server: Server) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = vllm_server.stream_chat(
        user("Hello"), max_tokens=6, ignore_eos=True, stream_options=options
    )
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk.get("usage")]
    assert counts == sorted(counts) and counts[-1] == 6


def test_echo(vllm_server: Server) -> None:
    body = {
        "model": vllm_server.model,
        "prompt": "Hello",
        "echo": True,
        "max_tokens": 2,
        "logprobs": 1,
    }
    answer = vllm_server.post("/v1/completions", body)
    if "not yet supported" in answer.text:
        pytest.skip(f"this vLLM refuses logprobs of a prompt: {answer.json()['message']}")
    (choice,) = answer.json()["choices"]
    assert choice["text"].startswith("Hello") and choice["logprobs"]["tokens"][:5] == list("Hello")


def test_prompt_of_tokens(vllm_server: Server) -> None:
    body = {"model": vllm_server.model, "prompt": list(b"Hello"), "max_tokens": 3, "temperature": 0}
    by_tokens, by_text = (
        vllm_server.post("/v1/completions", {**body, **more}).json()
        for more in ({}, {"prompt": "Hello"})
    )
    assert (
        by_tokens["choices"][0]["text"] == by_text["choices"][0]["text"]
        and by_tokens["usage"]["prompt_tokens"] == 5
    )


def test_too_long_a_prompt(vllm_server: Server) -> None:
    body = {"model": vllm_server.model, "prompt": "x" * 600, "max_tokens": 1}
    assert vllm_server.post("/v1/completions", body).status_code == 400
    vllm_server.check()


def test_unknown_model(vllm_server: Server) -> None:
    body = {"model": "another", "messages": user("Hello")}
    assert vllm_server.post("/v1/chat/completions", body).status_code == 404


def test_unknown_address(vllm_server: Server) -> None:
    assert vllm_server.get("/v1/nothing").status_code == 404
