"""Adapters over HTTP: what the server is asked for, and where the weights lie. The server here is httpx's own stand-in."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from pytest_vllm_regress.checkpoints.adapters import Adapter
from pytest_vllm_regress.checkpoints.forge import ensure_checkpoint
from pytest_vllm_regress.engines.server import Server
from pytest_vllm_regress.errors import RemoteError, Unsupported

from .test_server import unconnected

LOADED = "The lora adapter 'mine' has already been loaded."


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Server, list[httpx.Request], list[httpx.Response]]:
    """A server, what it is asked, and what it answers (200 where nothing is given)."""
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    requests: list[httpx.Request] = []
    answers: list[httpx.Response] = []

    def respond(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return answers.pop(0) if answers else httpx.Response(200, text="Success")

    made = unconnected(9)
    made.model_path = ensure_checkpoint("text", tmp_path / "checkpoints")
    made.client = httpx.Client(base_url=made.root_url, transport=httpx.MockTransport(respond))
    return made, requests, answers


def test_other_weights_may_be_written_over_those_of_a_folder(
    asked: tuple[Server, list[httpx.Request], list[httpx.Response]], tmp_path: Path
) -> None:
    server, requests, _ = asked
    folder, weights = tmp_path / "mine", []
    for seed in (1, 2):
        server.load_adapter(Adapter("mine", rank=4, seed=seed), folder=folder, replace=seed > 1)
        weights.append((folder / "adapter_model.safetensors").read_bytes())
    bodies = [json.loads(request.content) for request in requests]
    assert bodies[0] == {"lora_name": "mine", "lora_path": str(folder)}
    assert bodies[1] == {**bodies[0], "load_inplace": True}
    assert weights[0] != weights[1]


def test_a_vllm_that_replaces_no_adapter_is_not_applicable(
    asked: tuple[Server, list[httpx.Request], list[httpx.Response]],
) -> None:
    server, _, answers = asked
    answers.append(httpx.Response(400, json={"error": {"message": LOADED}}))
    with pytest.raises(Unsupported, match="in place of another"):
        server.load_adapter(Adapter("mine", rank=4), replace=True)


def test_a_name_that_is_taken_stays_an_error(asked: tuple[Server, list[httpx.Request], list[httpx.Response]]) -> None:
    server, _, answers = asked
    answers.append(httpx.Response(400, json={"error": {"message": LOADED}}))
    with pytest.raises(RemoteError, match="already been loaded"):
        server.load_adapter(Adapter("mine", rank=4))
