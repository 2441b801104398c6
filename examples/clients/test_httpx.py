import json

import httpx
import pytest
from scenario import HI


@pytest.fixture(scope="module")
def client(server):
    key = {"Authorization": f"Bearer {server.api_key}"}
    return httpx.Client(base_url=server.base_url, headers=key)


def body(server, **options):
    return {"model": server.model, "messages": HI, "max_tokens": 20, **options}


def test_two_choices(server, client):
    server.script([("one", "two")])
    answer = client.post("/chat/completions", json=body(server, n=2)).json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["one", "two"]


def test_a_stream(server, client):
    server.script("Hello!")
    with client.stream("POST", "/chat/completions", json=body(server, stream=True)) as response:
        *events, end = [line[6:] for line in response.iter_lines() if line]
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Hello!" and end == "[DONE]"


def test_a_slow_server(server, client):
    server.fail(delay_first_token=5)
    with pytest.raises(httpx.ReadTimeout):
        client.post("/chat/completions", json=body(server), timeout=0.5)


def test_no_connection(server, client):
    server.fail(refuse=30)
    with pytest.raises(httpx.ConnectError):
        client.get("/models")
