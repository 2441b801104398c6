"""LoRA adapters over HTTP: requests, and the folders of their weights.

The server is httpx's mock transport.
"""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from pytest_vllm_regress.engines.checkpoints.adapters import Adapter
from pytest_vllm_regress.engines.checkpoints.forge import ensure_checkpoint
from pytest_vllm_regress.engines.server import Server
from pytest_vllm_regress.errors import RemoteError, Unsupported

from .test_server import unconnected

LOADED = "The lora adapter 'mine' has already been loaded."


@pytest.fixture
def adapter_server(
    checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Server, list[httpx.Request], list[httpx.Response]]:
    """Return a server, the list of its requests, and the list of its responses (200 when it is
    empty)."""
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    requests: list[httpx.Request] = []
    answers: list[httpx.Response] = []

    def respond(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return answers.pop(0) if answers else httpx.Response(200, text="Success")

    server = unconnected(9)
    server.model_path = ensure_checkpoint("text", checkpoints)
    server.client = httpx.Client(base_url=server.root_url, transport=httpx.MockTransport(respond))
    return server, requests, answers


def test_other_weights_may_replace_those_in_a_folder(
    adapter_server: tuple[Server, list[httpx.Request], list[httpx.Response]], tmp_path: Path
) -> None:
    server, requests, _ = adapter_server
    folder, weights = tmp_path / "mine", []
    for seed in (1, 2):
        server.load_adapter(Adapter("mine", rank=4, seed=seed), folder=folder, replace=seed > 1)
        weights.append((folder / "adapter_model.safetensors").read_bytes())
    bodies = [json.loads(request.content) for request in requests]
    assert bodies[0] == {"lora_name": "mine", "lora_path": str(folder)}
    assert bodies[1] == {**bodies[0], "load_inplace": True}
    assert weights[0] != weights[1]


def test_a_vllm_that_cannot_replace_adapters_is_not_applicable(
    adapter_server: tuple[Server, list[httpx.Request], list[httpx.Response]],
) -> None:
    server, _, answers = adapter_server
    answers.append(httpx.Response(400, json={"error": {"message": LOADED}}))
    with pytest.raises(Unsupported, match="cannot replace a loaded adapter"):
        server.load_adapter(Adapter("mine", rank=4), replace=True)


def test_loading_a_name_twice_is_an_error(
    adapter_server: tuple[Server, list[httpx.Request], list[httpx.Response]],
) -> None:
    server, _, answers = adapter_server
    answers.append(httpx.Response(400, json={"error": {"message": LOADED}}))
    with pytest.raises(RemoteError, match="already been loaded"):
        server.load_adapter(Adapter("mine", rank=4))
