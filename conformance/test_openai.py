"""OpenAI's own client: blocking, asynchronous and streaming requests, and its exceptions."""

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
    answer = vllm_server.openai.chat.completions.create(
        model=vllm_server.model, messages=HELLO, n=2, max_tokens=9
    )
    assert [choice.index for choice in answer.choices] == [0, 1] and answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 18


def test_stream(vllm_server: Server) -> None:
    client, body = vllm_server.openai, {"model": vllm_server.model, "messages": HELLO, **GREEDY}
    whole = client.chat.completions.create(**body).choices[0].message.content
    parts = [
        chunk.choices[0].delta.content or ""
        for chunk in client.chat.completions.create(**body, stream=True)
    ]
    assert (
        "".join(parts) == whole
    )  # the number of parts varies: a slow reader gets several tokens at once


def test_async(vllm_server: Server) -> None:
    async def ask() -> list[str]:
        async with vllm_server.async_openai as client:
            completions = (
                client.completions.create(
                    model=vllm_server.model, prompt=f"prompt {number}", **GREEDY
                )
                for number in range(20)
            )
            return [answer.choices[0].text for answer in await asyncio.gather(*completions)]

    texts = asyncio.run(ask())
    assert len(texts) == 20 and len(set(texts)) > 15


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
    complete = [
        choice.message.content for choice in answer.choices if choice.finish_reason == "stop"
    ]
    assert complete and all(isinstance(json.loads(text or "")["ok"], bool) for text in complete)


def test_bad_request(vllm_server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="400"):
        vllm_server.openai.chat.completions.create(
            model=vllm_server.model, messages=HELLO, temperature=-1
        )
    vllm_server.check()


def test_wrong_key(vllm_server: Server) -> None:
    with pytest.raises(openai.AuthenticationError, match="401"):
        vllm_server.openai.with_options(api_key="wrong").models.list()


@pytest.mark.vllm_engine(task="embed")
def test_embeddings(vllm_server: Server) -> None:
    answer = vllm_server.openai.embeddings.create(model=vllm_server.model, input=["one", "two"])
    assert [len(entry.embedding) for entry in answer.data] == [128, 128]


def test_responses(vllm_server: Server) -> None:
    vllm_server.respond("Hello", max_output_tokens=2)  # skips the test if there is no such route
    answer = vllm_server.openai.responses.create(
        model=vllm_server.model, input="Hello", max_output_tokens=3
    )
    assert answer.usage is not None and answer.usage.output_tokens <= 3
