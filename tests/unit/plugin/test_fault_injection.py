"""Impostors between a test and a server."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from pytest_vllm_regress.cases.impostors import Impostor
from pytest_vllm_regress.cases.loading import load_case
from pytest_vllm_regress.plugin.fault_injection import FaultInjection, _Transport

CASE = Path(__file__).parents[3] / "cases" / "vllm-21443" / "case.toml"


@pytest.mark.parametrize(
    ("address", "refused"),
    [
        ("/v1/chat/completions", "max_tokens"),
        ("/v1/completions", "max_tokens"),
        ("/detokenize", "tokens"),
        ("/v1/embeddings", "encoding_format"),
        ("/rerank", "truncate_prompt_tokens"),
        ("/inference/v1/generate", "token_ids"),
        ("/v1/responses", "max_output_tokens"),
    ],
)
def test_the_wrong_argument_is_known_to_the_address(address: str, refused: str) -> None:
    fault = FaultInjection(Impostor.WRONG_ARGUMENT, load_case(CASE), "")
    transport = _Transport(fault, cast(Any, SimpleNamespace(child=None)))
    bodies: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.read()))
        return httpx.Response(400)

    transport._real = cast(Any, httpx.MockTransport(answer))
    with httpx.Client(base_url="http://localhost", transport=transport) as client:
        client.post(address, json={"model": "m", refused: 1})
    assert fault.injected and [body[refused] for body in bodies] == ["many"]
