"""Pooling requests over HTTP, and OpenAI's client. The server is httpx's mock transport."""

from __future__ import annotations

import json
import sys
from typing import Any

import httpx
import pytest

from pytest_vllm_regress.engines.http.requests import Ranked
from pytest_vllm_regress.engines.server import Server
from pytest_vllm_regress.errors import RemoteError, Unsupported, UsageError

from .test_server import unconnected

Requests = list[tuple[str, dict[str, Any]]]


def answering(answers: dict[str, Any], **spec: Any) -> tuple[Server, Requests]:
    """Return a server with these addresses, and the list of requests that it gets."""
    server, requests = unconnected(9, **spec), []
    server.model = "m"

    def respond(request: httpx.Request) -> httpx.Response:
        requests.append((request.url.path, json.loads(request.content)))
        answer = answers.get(request.url.path)
        return httpx.Response(
            404 if answer is None else 200, json=answer or {"detail": "Not Found"}
        )

    server.client = httpx.Client(base_url=server.root_url, transport=httpx.MockTransport(respond))
    return server, requests


def test_answers_are_in_the_order_of_the_texts() -> None:
    data = [
        {"index": 1, "probs": [0, 1], "data": [[1.0]]},
        {"index": 0, "probs": [1, 0], "data": [[0.0], [2.0]]},
    ]
    server, requests = answering({"/classify": {"data": data}, "/pooling": {"data": data}})
    assert server.classify(["a", "b"]) == [[1, 0], [0, 1]]
    assert server.pool("a", task="token_embed") == [[[0.0], [2.0]], [[1.0]]]
    assert requests == [
        ("/classify", {"model": "m", "input": ["a", "b"]}),
        ("/pooling", {"model": "m", "input": ["a"], "task": "token_embed"}),
    ]


@pytest.mark.parametrize(
    ("api", "path"), [("", "/rerank"), ("v1", "/v1/rerank"), ("v2", "/v2/rerank")]
)
def test_rerank_returns_documents_with_their_scores(api: Any, path: str) -> None:
    results = [
        {"index": 1, "relevance_score": 0.5, "document": {"text": "b"}},
        {"index": 0, "relevance_score": 0.25, "document": {"text": "a"}},
    ]
    server, requests = answering({path: {"results": results}})
    assert server.rerank("q", ["a", "b"], top_n=2, api=api) == [
        Ranked(1, 0.5, "b"),
        Ranked(0, 0.25, "a"),
    ]
    assert requests == [(path, {"model": "m", "query": "q", "documents": ["a", "b"], "top_n": 2})]


def test_detokenize_returns_the_text() -> None:
    server, requests = answering({"/detokenize": {"prompt": "Hi"}})
    assert server.detokenize([72, 105]) == "Hi" and requests == [
        ("/detokenize", {"model": "m", "tokens": [72, 105]})
    ]


def test_a_missing_address_is_not_applicable() -> None:
    server, _ = answering({})
    for ask in (server.classify, server.pool):
        with pytest.raises(Unsupported, match="it serves no /"):
            ask("a")


FLAT = {"object": "error", "message": "The model does not support Score API", "code": 400}


@pytest.mark.parametrize(
    "error", [FLAT, {"error": {"message": "The model does not support Score API", "code": 400}}]
)
def test_an_error_with_the_status_of_success_is_an_error(error: dict[str, Any]) -> None:
    """vLLM 0.7.3 answers like this at an address that it has for other models only."""
    everywhere = dict.fromkeys(
        ("/score", "/rerank", "/classify", "/pooling", "/v1/embeddings", "/v1/responses"), error
    )
    server, _ = answering(everywhere, task="generate")
    for ask in (server.embed, server.classify, server.pool, server.respond):
        with pytest.raises(
            RemoteError, match=r"HTTP 200, but an error: .*does not support Score API"
        ):
            ask("a")
    for score in (server.score, server.rerank):
        with pytest.raises(RemoteError, match="HTTP 200, but an error"):
            score("a", ["b"])


@pytest.mark.parametrize("task", ["embed", "score"])
def test_an_address_for_other_models_only_is_not_applicable(task: str) -> None:
    server, _ = answering({"/score": FLAT, "/rerank": FLAT}, task=task)
    for score, path in ((server.score, "/score"), (server.rerank, "/rerank")):
        with pytest.raises(
            Unsupported, match=f"{path} for task='{task}': the model does not support Score API"
        ):
            score("a", ["b"])


def test_an_answer_may_have_an_empty_error() -> None:
    server, _ = answering({"/v1/responses": {"object": "response", "error": None, "output": []}})
    assert server.respond("a")["output"] == []


@pytest.mark.parametrize(
    ("task", "answers", "paths"),
    [
        ("generate", {"/v1/completions": {"choices": [1]}}, ["/v1/completions"]),
        ("embed", {"/v1/embeddings": {"data": [1]}}, ["/v1/embeddings"]),
        ("score", {"/score": {"data": [1]}}, ["/score"]),
        ("token_embed", {"/pooling": {"data": [1]}}, ["/pooling"]),
        ("classify", {"/classify": {"data": [1]}, "/pooling": {"data": [1]}}, ["/classify"]),
        ("classify", {"/pooling": {"data": [1]}}, ["/classify", "/pooling"]),
    ],
)
def test_a_server_is_checked_with_a_request_for_its_task(
    task: str, answers: dict[str, Any], paths: list[str]
) -> None:
    server, requests = answering(answers, task=task)
    server.check()
    assert [path for path, _ in requests] == paths
    empty, _ = answering({path: {"data": []} for path in answers}, task=task)
    with pytest.raises(RemoteError, match="returned no content"):
        empty.check()


def test_openai_s_client_has_address_key_and_deadline() -> None:
    pytest.importorskip("openai")
    server = unconnected(9)
    client = server.openai
    assert client is server.openai
    assert (str(client.base_url), client.api_key, client.timeout) == (
        f"{server.base_url}/",
        "key",
        5,
    )
    assert client.max_retries == 0 and server.async_openai is not server.async_openai
    server._close_openai()
    assert client.is_closed() and server.openai is not client


def test_a_missing_openai_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(UsageError, match=r"pip install 'pytest-vllm-regress\[openai\]'"):
        unconnected(9).openai  # noqa: B018
    with pytest.raises(UsageError, match="package openai"):
        unconnected(9).async_openai  # noqa: B018
