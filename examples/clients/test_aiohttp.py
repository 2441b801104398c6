import asyncio

import aiohttp
import pytest


@pytest.fixture
def ask(server):
    async def ask_all(texts, options):
        async def send(text):
            body = {"model": server.model, "messages": [{"role": "user", "content": text}]}
            url = f"{server.base_url}/chat/completions"
            async with session.post(url, json=body | options) as response:
                return response.status, await response.text()

        key = {"Authorization": f"Bearer {server.api_key}"}
        async with aiohttp.ClientSession(headers=key) as session:
            return await asyncio.gather(*map(send, texts))

    return lambda *texts, **options: asyncio.run(ask_all(texts, options))


def test_concurrent_conversations(server, ask):
    server.script(lambda request: f"You said {request.text}.")
    texts = [f"text {number}" for number in range(30)]
    for text, (_, answer) in zip(texts, ask(*texts), strict=True):
        assert f"You said {text}." in answer


def test_a_stream(server, ask):
    server.script("Hello!")
    ((_, events),) = ask("Hi", stream=True)
    assert events.endswith("data: [DONE]\n\n")


def test_a_refused_argument(ask):
    ((status, text),) = ask("Hi", temperature=-1)
    assert status == 400 and "temperature" in text


def test_a_broken_connection(server, ask):
    server.fail(drop_after=0)
    with pytest.raises(aiohttp.ClientPayloadError):
        ask("Hi")
