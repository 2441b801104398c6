"""vllm#16529: a bias for a token outside the vocabulary must not kill the engine."""

from __future__ import annotations

import contextlib

import pytest

from pytest_vllm_regress import AsyncEngine, RemoteError, Server

pytestmark = pytest.mark.vllm_case("vllm-16529")

KNOWN, UNKNOWN = 65, 10**6


@pytest.mark.vllm_engine(front="async", generation="V1", fresh=True)
def test_engine(vllm_engine: AsyncEngine, vllm_leg: str) -> None:
    token = UNKNOWN if vllm_leg == "subject" else KNOWN
    with contextlib.suppress(RemoteError):  # rejecting the request is correct
        vllm_engine.generate("Hello", {"max_tokens": 4, "logit_bias": {token: 5.0}})
    vllm_engine.check()


@pytest.mark.vllm_engine(front="serve", generation="V1", fresh=True)
def test_server(vllm_server: Server, vllm_leg: str) -> None:
    token = UNKNOWN if vllm_leg == "subject" else KNOWN
    body = {"model": vllm_server.model, "prompt": "Hello", "max_tokens": 4, "logit_bias": {str(token): 5.0}}
    vllm_server.post("/v1/completions", body)  # any status is fine
    vllm_server.check()
