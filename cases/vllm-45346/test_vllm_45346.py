"""vllm#45346: no request may take the engine down, whatever it asks for."""

from __future__ import annotations

import contextlib

import pytest

from pytest_vllm_regress import AsyncEngine, RemoteError, Server

pytestmark = pytest.mark.vllm_case("vllm-45346")

EMPTY = {"structured_outputs": {"json_object": False}}


@pytest.mark.vllm_engine(front="async", generation="V1", fresh=True)
def test_engine_survives_an_empty_constraint(vllm_engine: AsyncEngine, vllm_leg: str) -> None:
    with contextlib.suppress(RemoteError):  # to refuse it is right
        vllm_engine.generate("Hello", {"max_tokens": 4, **(EMPTY if vllm_leg == "subject" else {})})
    vllm_engine.check()


@pytest.mark.vllm_requires(vllm=">=0.11")  # before, HTTP had no word for it
@pytest.mark.vllm_engine(front="serve", generation="V1", fresh=True)
def test_server_survives_an_empty_constraint(vllm_server: Server, vllm_leg: str) -> None:
    body = {
        "model": vllm_server.model,
        "prompt": "Hello",
        "max_tokens": 4,
        **(EMPTY if vllm_leg == "subject" else {}),
    }
    vllm_server.post("/v1/completions", body)  # any status
    vllm_server.check()
