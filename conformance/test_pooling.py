"""Pooling: embeddings, classes and scores, offline, asynchronous and over HTTP, with decoders and
encoders."""

from __future__ import annotations

import base64
import math
import struct
from typing import Literal

import pytest

from pytest_vllm_regress import AsyncEngine, Engine, RemoteError, Server

# If V1 of 0.9 does not chunk prompts, a batch holds max_model_len tokens, and the default of
# max_num_seqs exceeds that.
SMALL = {"max_model_len": 64, "extra": {"max_num_seqs": 32}}
pytestmark = pytest.mark.vllm_engine(task="embed", generation=["V0", "V1"], **SMALL)
TEXTS = ["the cat sat on the mat", "the cat sat on a mat", "42"]


def cosine(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True)) / (
        math.hypot(*left) * math.hypot(*right)
    )


def test_embed(vllm_engine: Engine) -> None:
    vectors = vllm_engine.embed([*TEXTS, TEXTS[0]])
    assert {len(vector) for vector in vectors} == {128}
    assert all(math.isclose(math.hypot(*vector), 1, rel_tol=1e-3) for vector in vectors)
    assert (
        cosine(vectors[0], vectors[3]) == pytest.approx(1, abs=1e-3)
        and cosine(vectors[0], vectors[2]) < 0.999
    )


def test_embed_alone_or_in_a_batch(vllm_engine: Engine) -> None:
    together = vllm_engine.embed([f"prompt {number}" for number in range(40)])
    (alone,) = vllm_engine.embed("prompt 17")
    assert cosine(together[17], alone) == pytest.approx(1, abs=1e-3)


def test_score(vllm_engine: Engine) -> None:
    first, second, third = vllm_engine.embed(TEXTS)
    assert vllm_engine.score(TEXTS[0], TEXTS[1:]) == pytest.approx(
        [cosine(first, second), cosine(first, third)], abs=1e-2
    )


def test_longest_prompt(vllm_engine: Engine) -> None:
    (vector,) = vllm_engine.embed("x" * 64)
    assert len(vector) == 128
    with pytest.raises(RemoteError, match=r"(?i)length|longer|max_model_len|tokens"):
        vllm_engine.embed("x" * 65)
    vllm_engine.check()


def test_http(vllm_server: Server) -> None:
    vectors = vllm_server.embed(TEXTS)
    assert {len(vector) for vector in vectors} == {128}
    assert vllm_server.score(TEXTS[0], TEXTS[1:]) == pytest.approx(
        [cosine(vectors[0], vectors[1]), cosine(vectors[0], vectors[2])], abs=1e-2
    )


@pytest.mark.vllm_engine(front="async")
def test_async_embed(vllm_engine: AsyncEngine) -> None:
    first, second, same = vllm_engine.embed([TEXTS[0], TEXTS[2], TEXTS[0]])
    assert cosine(first, same) == pytest.approx(1, abs=1e-3) and cosine(first, second) < 0.999
    vllm_engine.check()


@pytest.mark.vllm_engine(task="token_embed")
def test_encode(vllm_engine: Engine) -> None:
    three, five = vllm_engine.encode(["one", "three"])
    assert [len(three), len(five)] == [3, 5] and {len(vector) for vector in three + five} == {128}


@pytest.mark.vllm_engine(task="token_embed", front="async")
def test_async_encode(vllm_engine: AsyncEngine) -> None:
    (vectors,) = vllm_engine.encode("three")
    assert [len(vector) for vector in vectors] == [128] * 5


@pytest.mark.vllm_engine(model="classifier", task="classify")
def test_classify(vllm_engine: Engine) -> None:
    first, second, same = vllm_engine.classify([TEXTS[0], TEXTS[2], TEXTS[0]])
    assert len(first) == 3 and sum(first) == pytest.approx(1, abs=1e-2) and min(first) >= 0
    assert first == pytest.approx(same, abs=1e-3) and first != pytest.approx(second, abs=1e-3)


@pytest.mark.vllm_engine(model="classifier", task="classify", front="async")
def test_async_classify(vllm_engine: AsyncEngine) -> None:
    (probabilities,) = vllm_engine.classify(TEXTS[0])
    assert len(probabilities) == 3 and sum(probabilities) == pytest.approx(1, abs=1e-2)


@pytest.mark.vllm_engine(model="encoder")
def test_encoder(vllm_engine: Engine) -> None:
    first, second, same = vllm_engine.embed([TEXTS[0], TEXTS[2], TEXTS[0]])
    assert (
        len(first) == 128
        and cosine(first, same) == pytest.approx(1, abs=1e-3)
        and cosine(first, second) < 0.999
    )


@pytest.mark.vllm_engine(model="reranker", task="score")
def test_cross_encoder(vllm_engine: Engine) -> None:
    first, second, same = vllm_engine.score("what is a cat", ["the cat", "42", "the cat"])
    assert 0 <= first <= 1 and first == pytest.approx(same, abs=1e-3) and first != second


@pytest.mark.vllm_engine(front="serve", model="classifier", task="classify")
def test_http_classify(vllm_server: Server) -> None:
    vllm_server.check()
    first, second, same = vllm_server.classify([TEXTS[0], TEXTS[2], TEXTS[0]])
    assert (
        len(first) == 3
        and first == pytest.approx(same, abs=1e-3)
        and first != pytest.approx(second, abs=1e-3)
    )


@pytest.mark.vllm_engine(front="serve", task="token_embed")
def test_http_pool(vllm_server: Server) -> None:
    three, five = vllm_server.pool(["one", "three"])
    assert [len(three), len(five)] == [3, 5] and {len(vector) for vector in three + five} == {128}


@pytest.mark.vllm_engine(front="serve", model="reranker", task="score")
@pytest.mark.parametrize("api", ["", "v1", "v2"], ids=["", "v1", "v2"])
def test_http_rerank(vllm_server: Server, api: Literal["", "v1", "v2"]) -> None:
    documents = ["the cat", "42", "a mat"]
    ranked = vllm_server.rerank("what is a cat", documents, api=api)
    assert sorted(result.index for result in ranked) == [0, 1, 2]
    scores = [result.score for result in ranked]
    assert scores == sorted(scores, reverse=True)
    assert all(result.text == documents[result.index] for result in ranked)
    assert vllm_server.rerank("what is a cat", documents, api=api, top_n=1) == ranked[:1]


@pytest.mark.vllm_engine(front="serve", model="reranker", task="score")
def test_http_cross_encoder(vllm_server: Server) -> None:
    ranked = vllm_server.rerank("what is a cat", ["the cat", "42"])
    scores = vllm_server.score("what is a cat", ["the cat", "42"])
    in_order = sorted(ranked, key=lambda result: result.index)
    assert scores == pytest.approx([result.score for result in in_order], abs=1e-3)


def test_http_base64(vllm_server: Server) -> None:
    body = {"model": vllm_server.model, "input": TEXTS[0], "encoding_format": "base64"}
    answer = vllm_server.post("/v1/embeddings", body).json()["data"][0]["embedding"]
    vector = list(struct.unpack("<128f", base64.b64decode(answer)))
    assert vector == pytest.approx(vllm_server.embed(TEXTS[0])[0], abs=1e-3)


def test_http_longest_prompt(vllm_server: Server) -> None:
    assert len(vllm_server.embed("x" * 64)[0]) == 128
    with pytest.raises(RemoteError, match="HTTP 400"):
        vllm_server.embed("x" * 65)


def test_http_many_at_once(vllm_server: Server) -> None:
    texts = [f"prompt {number}" for number in range(60)]
    bodies = [{"model": vllm_server.model, "input": text} for text in texts]
    alone = [
        answer.json()["data"][0]["embedding"]
        for answer in vllm_server.post_all("/v1/embeddings", bodies)
    ]
    together = vllm_server.embed(texts)
    assert all(
        cosine(single, batched) > 0.999 for single, batched in zip(alone, together, strict=True)
    )
