"""vllm#45346: no request may take the engine down, whatever it asks for."""

from __future__ import annotations

import contextlib

import pytest

from pytest_vllm_regress import AsyncEngine, RemoteError, Server

pytestmark = pytest.mark.vllm_case("vllm-45346")


@pytest.mark.vllm_requires(vllm="!=0.8.3,!=0.8.4")  # there the same request kills its own process: another symptom
@pytest.mark.vllm_engine(front="async", generation="V1", fresh=True)
def test_engine_survives_an_empty_constraint(vllm_engine: AsyncEngine) -> None:
    with contextlib.suppress(RemoteError):  # to refuse it is right
        vllm_engine.generate("Hello", {"max_tokens": 4, "structured_outputs": {"json_object": False}})
    vllm_engine.check()


@pytest.mark.vllm_requires(vllm=">=0.11")  # before, HTTP had no word for it
@pytest.mark.vllm_engine(front="serve", generation="V1", fresh=True)
def test_server_survives_an_empty_constraint(vllm_server: Server) -> None:
    body = {
        "model": vllm_server.model,
        "prompt": "Hello",
        "max_tokens": 4,
        "structured_outputs": {"json_object": False},
    }
    vllm_server.post("/v1/completions", body)  # any status
    vllm_server.check()
