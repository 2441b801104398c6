"""vllm#45346: an empty constraint in a request must not kill the engine."""

from __future__ import annotations

import contextlib

import pytest

from pytest_vllm_regress import AsyncEngine, RemoteError, Server

pytestmark = pytest.mark.vllm_case("vllm-45346")

EMPTY = {"structured_outputs": {"json_object": False}}


@pytest.mark.vllm_engine(front="async", generation="V1", fresh=True)
def test_engine_survives_an_empty_constraint(vllm_engine: AsyncEngine, vllm_leg: str) -> None:
    with contextlib.suppress(RemoteError):  # rejecting the request is correct
        vllm_engine.generate("Hello", {"max_tokens": 4, **(EMPTY if vllm_leg == "subject" else {})})
    vllm_engine.check()


@pytest.mark.vllm_requires(vllm=">=0.11")  # earlier HTTP servers have no such parameter
@pytest.mark.vllm_engine(front="serve", generation="V1", fresh=True)
def test_server_survives_an_empty_constraint(vllm_server: Server, vllm_leg: str) -> None:
    body = {
        "model": vllm_server.model,
        "prompt": "Hello",
        "max_tokens": 4,
        **(EMPTY if vllm_leg == "subject" else {}),
    }
    vllm_server.post("/v1/completions", body)  # any status is fine
    vllm_server.check()
