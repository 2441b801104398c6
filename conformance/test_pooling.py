"""Pooling: vectors of prompts, offline and over HTTP."""

from __future__ import annotations

import math

import pytest

from pytest_vllm_regress import Engine, RemoteError, Server

pytestmark = pytest.mark.vllm_engine(task="embed", generation=["V0", "V1"], max_model_len=64)
TEXTS = ["the cat sat on the mat", "the cat sat on a mat", "42"]


def cosine(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))


def test_embed(vllm_engine: Engine) -> None:
    vectors = vllm_engine.embed([*TEXTS, TEXTS[0]])
    assert {len(vector) for vector in vectors} == {128}
    assert all(math.isclose(math.hypot(*vector), 1, rel_tol=1e-3) for vector in vectors)
    assert cosine(vectors[0], vectors[3]) == pytest.approx(1, abs=1e-3) and cosine(vectors[0], vectors[2]) < 0.999


def test_embed_alone_or_in_a_batch(vllm_engine: Engine) -> None:
    together = vllm_engine.embed([f"prompt {number}" for number in range(40)])
    (alone,) = vllm_engine.embed("prompt 17")
    assert cosine(together[17], alone) == pytest.approx(1, abs=1e-3)


def test_score(vllm_engine: Engine) -> None:
    one, other, third = vllm_engine.embed(TEXTS)
    assert vllm_engine.score(TEXTS[0], TEXTS[1:]) == pytest.approx([cosine(one, other), cosine(one, third)], abs=1e-2)


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
