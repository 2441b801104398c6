"""``vllm serve``: chat, streams, structured output, clients that disconnect, many concurrent
requests."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from pytest_vllm_regress import Server

pytestmark = pytest.mark.vllm_engine(front="serve", generation=["V0", "V1"])
HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


def test_chat(vllm_server: Server) -> None:
    (choice,) = vllm_server.chat(HELLO, max_tokens=12, logprobs=True, top_logprobs=2)["choices"]
    assert choice["finish_reason"] in ("stop", "length") and all(
        len(token["top_logprobs"]) == 2 for token in choice["logprobs"]["content"]
    )


def test_n_8(vllm_server: Server) -> None:
    choices = vllm_server.chat(HELLO, n=8, max_tokens=12)["choices"]
    assert [choice["index"] for choice in choices] == list(range(8))


def test_stream(vllm_server: Server) -> None:
    chunks = vllm_server.stream_chat(
        HELLO, max_tokens=12, ignore_eos=True, stream_options={"include_usage": True}
    )
    assert len(chunks) >= 3 and chunks[-1]["usage"]["completion_tokens"] == 12


def test_stop_string(vllm_server: Server) -> None:
    greedy = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
    text = vllm_server.chat(HELLO, **greedy)["choices"][0]["message"]["content"] or ""
    letter = next(
        letter for letter in text if letter.isascii() and letter.isprintable() and letter != " "
    )
    (choice,) = vllm_server.chat(HELLO, **greedy, stop=[letter])["choices"]
    assert (
        choice["finish_reason"] == "stop"
        and choice["message"]["content"] == text[: text.index(letter)]
    )


def test_json_schema(vllm_server: Server) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
    choices = vllm_server.chat(HELLO, n=4, max_tokens=200, response_format=form)["choices"]
    complete = [
        choice["message"]["content"] for choice in choices if choice["finish_reason"] == "stop"
    ]
    assert complete and all(isinstance(json.loads(text or "")["ok"], bool) for text in complete)


def test_key_is_asked_for(vllm_server: Server) -> None:
    assert httpx.get(vllm_server.base_url + "/models", trust_env=False).status_code == 401
    assert vllm_server.api_key not in " ".join(vllm_server.argv)


def test_client_goes_away(vllm_server: Server) -> None:
    body = {
        "model": vllm_server.model,
        "prompt": "Hello",
        "max_tokens": 400,
        "ignore_eos": True,
        "stream": True,
    }
    with vllm_server.client.stream("POST", "/v1/completions", json=body, timeout=30) as response:
        assert next(response.iter_lines())
    vllm_server.check()


def test_200_at_once(vllm_server: Server) -> None:
    bodies = [
        {
            "model": vllm_server.model,
            "prompt": f"request {number}",
            "max_tokens": 8,
            "ignore_eos": True,
        }
        for number in range(200)
    ]
    with ThreadPoolExecutor(50) as pool:
        answers = list(
            pool.map(
                lambda body: vllm_server.client.post("/v1/completions", json=body, timeout=60),
                bodies,
            )
        )
    assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [8] * 200


@pytest.mark.vllm_engine(
    extra={"enable_prefix_caching": True}, server_options={"enable_prompt_tokens_details": True}
)
def test_cached_tokens(vllm_server: Server) -> None:
    prompt = "a prompt of several blocks, that no other check uses; " * 3
    first, again = (vllm_server.cached_tokens(prompt) for _ in range(2))
    assert first == 0 and 0 < again < len(prompt)


@pytest.mark.vllm_engine(fresh=True)
def test_stop(vllm_server: Server) -> None:
    assert vllm_server.stop() == ()
