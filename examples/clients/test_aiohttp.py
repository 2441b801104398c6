import asyncio

import aiohttp
import pytest


def ask(server, *texts, **options):
    async def send(session, text):
        body = {"model": server.model, "messages": [{"role": "user", "content": text}], **options}
        async with session.post("chat/completions", json=body) as response:
            return await response.text()

    async def send_all():
        key = {"Authorization": f"Bearer {server.api_key}"}
        async with aiohttp.ClientSession(server.base_url + "/", headers=key) as session:
            return await asyncio.gather(*(send(session, text) for text in texts))

    return asyncio.run(send_all())


def test_concurrent_conversations(server):
    server.script(lambda request: f"You said {request.text}.")
    answers = ask(server, *map(str, range(30)))
    assert all(f"You said {number}." in answer for number, answer in enumerate(answers))


def test_a_stream(server):
    server.script("Hello!")
    assert ask(server, "Hi", stream=True)[0].endswith("data: [DONE]\n\n")


def test_a_refused_argument(server):
    assert "temperature" in ask(server, "Hi", temperature=-1)[0]


def test_a_broken_connection(server):
    server.fail(drop_after=0)
    with pytest.raises(aiohttp.ClientPayloadError):
        ask(server, "Hi")
