"""OpenAI's own client: blocking, asynchronous, streamed, and what it makes of errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pytest_vllm_regress import Server

openai = pytest.importorskip("openai")
pytestmark = pytest.mark.vllm_engine(front="serve", generation=["V0", "V1"])
HELLO: Any = [{"role": "user", "content": "Hello"}]
GREEDY: Any = {"temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}}


def test_blocking(vllm_server: Server) -> None:
    answer = vllm_server.openai.chat.completions.create(model=vllm_server.model, messages=HELLO, n=2, max_tokens=9)
    assert [choice.index for choice in answer.choices] == [0, 1] and answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 18


def test_stream(vllm_server: Server) -> None:
    client, asked = vllm_server.openai, {"model": vllm_server.model, "messages": HELLO, **GREEDY}
    whole = client.chat.completions.create(**asked).choices[0].message.content
    parts = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**asked, stream=True)]
    assert "".join(parts) == whole  # in how many parts differs: who reads late gets tokens together


def test_async(vllm_server: Server) -> None:
    async def ask() -> list[str]:
        async with vllm_server.async_openai as client:
            asked = (
                client.completions.create(model=vllm_server.model, prompt=f"prompt {number}", **GREEDY)
                for number in range(20)
            )
            return [answer.choices[0].text for answer in await asyncio.gather(*asked)]

    said = asyncio.run(ask())
    assert len(said) == 20 and len(set(said)) > 15


def test_async_stream(vllm_server: Server) -> None:
    async def ask() -> list[str]:
        async with vllm_server.async_openai as client:
            stream = await client.chat.completions.create(
                model=vllm_server.model, messages=HELLO, stream=True, **GREEDY
            )
            return [chunk.choices[0].finish_reason async for chunk in stream]

    *others, last = asyncio.run(ask())
    assert last == "length" and set(others) == {None}


def test_models(vllm_server: Server) -> None:
    assert [model.id for model in vllm_server.openai.models.list()] == [vllm_server.model]


def test_schema(vllm_server: Server) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form: Any = {
        "type": "json_schema",
        "json_schema": {"name": "s", "schema": {**schema, "additionalProperties": False}},
    }
    answer = vllm_server.openai.chat.completions.create(
        model=vllm_server.model, messages=HELLO, n=4, max_tokens=200, response_format=form
    )
    ended = [choice.message.content for choice in answer.choices if choice.finish_reason == "stop"]
    assert ended and all(isinstance(json.loads(text or "")["ok"], bool) for text in ended)


def test_bad_request(vllm_server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="400"):
        vllm_server.openai.chat.completions.create(model=vllm_server.model, messages=HELLO, temperature=-1)
    vllm_server.check()


def test_wrong_key(vllm_server: Server) -> None:
    with pytest.raises(openai.AuthenticationError, match="401"):
        vllm_server.openai.with_options(api_key="wrong").models.list()


@pytest.mark.vllm_engine(task="embed")
def test_embeddings(vllm_server: Server) -> None:
    answer = vllm_server.openai.embeddings.create(model=vllm_server.model, input=["one", "two"])
    assert [len(each.embedding) for each in answer.data] == [128, 128]


def test_responses(vllm_server: Server) -> None:
    vllm_server.respond("Hello", max_output_tokens=2)  # not applicable where there is no such address
    answer = vllm_server.openai.responses.create(model=vllm_server.model, input="Hello", max_output_tokens=3)
    assert answer.usage is not None and answer.usage.output_tokens <= 3
