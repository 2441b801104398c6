"""Requests for beam search, priorities and sleep mode, and those that are rejected before they are
sent."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from pytest_vllm_regress import AsyncEngine, Engine, EngineSpec, Script, tensor_base64
from pytest_vllm_regress.engines.inputs.media import noise
from pytest_vllm_regress.engines.running import Launch
from pytest_vllm_regress.engines.server import Server
from pytest_vllm_regress.errors import RemoteError, UsageError

from .test_server import unconnected

NEVER: Any = SimpleNamespace(admit=lambda request: None, check=lambda: None)


def engine(kind: type[Engine] | type[AsyncEngine]) -> tuple[Any, list[dict[str, Any]]]:
    """Return an engine, and the list of requests to its child, which answers each with an empty
    list."""
    sent: list[dict[str, Any]] = []

    def request(operation: str, deadline: object, **arguments: Any) -> list[Any]:
        sent.append({"operation": operation, **arguments})
        return []

    child: Any = SimpleNamespace(request=request)
    launch = Launch(child, EngineSpec.create(), lambda *given: None, NEVER)  # type: ignore[arg-type]
    return kind(launch, SimpleNamespace()), sent  # type: ignore[arg-type]


@pytest.mark.parametrize(("priority", "sent_as"), [(3, [3, 3]), ([1, 0], [1, 0])])
def test_a_priority_for_all_or_one_for_each(priority: Any, sent_as: list[int]) -> None:
    http_server, sent = engine(Engine)
    http_server.generate(["a", "b"], priority=priority)
    assert sent[0]["priority"] == sent_as


def test_the_number_of_priorities_must_match_the_prompts() -> None:
    http_server, sent = engine(AsyncEngine)
    with pytest.raises(
        UsageError, match="2 prompts, but 3 priorities: give one, or one for each prompt"
    ):
        http_server.generate(["a", "b"], priority=[1, 2, 3])
    assert not sent


def test_options_that_are_not_given_are_not_sent() -> None:
    http_server, sent = engine(AsyncEngine)
    http_server.generate("a")
    assert not {"priority", "in_turn", "abort_after", "adapters"} & set(sent[0])
    http_server.generate("a", in_turn=True)
    assert sent[1]["in_turn"] is True


@pytest.mark.parametrize("kind", [Engine, AsyncEngine])
def test_beam_search_rejects_scripts(kind: type[Engine] | type[AsyncEngine]) -> None:
    http_server, sent = engine(kind)
    with pytest.raises(UsageError, match="a script cannot be followed"):
        http_server.beam_search(["plain", Script.text("said").prompt()], beam_width=2, max_tokens=3)
    assert not sent
    http_server.beam_search("plain", beam_width=2, max_tokens=3, length_penalty=0.5)
    assert sent[0]["params"] == {"beam_width": 2, "max_tokens": 3, "length_penalty": 0.5}
    assert sent[0]["prompts"] == ["plain"]


def server(status: int = 200, **spec: Any) -> tuple[Server, list[httpx.Request]]:
    """Return a server, and the list of requests that it gets.

    It always answers with two beams in the wrong order.
    """
    requests: list[httpx.Request] = []
    worse, best = (
        {"text": text, "message": {"content": f"{text} said"}} for text in ("worse", "best")
    )
    beams = {"choices": [{"index": 1, **worse}, {"index": 0, **best}], "is_sleeping": True}

    def respond(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(status, json=beams)

    http_server = unconnected(9, **spec)
    http_server.client = httpx.Client(
        base_url=http_server.root_url, transport=httpx.MockTransport(respond)
    )
    return http_server, requests


def test_missing_developer_routes_are_named() -> None:
    http_server, requests = server()
    for method in (
        http_server.sleep,
        http_server.wake_up,
        http_server.is_sleeping,
        http_server.reset_prefix_cache,
    ):
        with pytest.raises(
            UsageError, match=f'{method.__name__} needs env={{"VLLM_SERVER_DEV_MODE": "1"}}'
        ):
            method()
    assert not requests


def test_developer_routes_are_requested() -> None:
    http_server, requests = server(env={"VLLM_SERVER_DEV_MODE": "1"})
    http_server.sleep(level=2)
    http_server.wake_up()
    http_server.reset_prefix_cache()
    assert http_server.is_sleeping()
    assert [f"{request.method} {request.url.raw_path.decode()}" for request in requests] == [
        *("POST /sleep?level=2", "POST /wake_up", "POST /reset_prefix_cache", "GET /is_sleeping")
    ]


def test_beams_over_http_are_sorted_best_first() -> None:
    http_server, requests = server()
    assert http_server.beam_search("Hello", beam_width=2, max_tokens=3, length_penalty=0.5) == [
        "best",
        "worse",
    ]
    body = json.loads(requests[0].content)
    assert {
        name: body[name] for name in ("use_beam_search", "n", "max_tokens", "length_penalty")
    } == {
        "use_beam_search": True,
        "n": 2,
        "max_tokens": 3,
        "length_penalty": 0.5,
    }


def test_beam_search_for_a_conversation() -> None:
    http_server, requests = server()
    conversation = [{"role": "user", "content": "Hello"}]
    assert http_server.beam_search(conversation, beam_width=2, max_tokens=3) == [
        "best said",
        "worse said",
    ]
    assert (
        requests[0].url.path == "/v1/chat/completions"
        and json.loads(requests[0].content)["messages"] == conversation
    )


@pytest.mark.parametrize("prompt", ["Hello", [{"role": "user", "content": "Hello"}]])
def test_beam_search_with_an_unknown_model_is_an_error(prompt: Any) -> None:
    http_server, _ = server(status=404)
    with pytest.raises(RemoteError, match="HTTP 404"):
        http_server.beam_search(prompt, beam_width=2, max_tokens=3, model="unloaded")


def test_beam_search_over_http_rejects_scripts() -> None:
    http_server, requests = server()
    scripted = Script.text("said").prompt()
    for prompt in (scripted, [{"role": "user", "content": scripted}]):
        with pytest.raises(UsageError, match="a script cannot be followed"):
            http_server.beam_search(prompt, beam_width=2, max_tokens=3)
    assert not requests


@pytest.mark.parametrize(
    "config", [{"hidden_size": 4}, {"hidden_size": 9, "text_config": {"hidden_size": 4}}]
)
def test_prompt_embeds_have_the_width_of_the_model(config: dict[str, Any], tmp_path: Path) -> None:
    http_server, _ = server()
    (tmp_path / "config.json").write_text(json.dumps(config))
    http_server.model_path = tmp_path
    assert http_server.prompt_embeds(3, seed=5) == tensor_base64(noise(3, 4, seed=5))


def test_a_function_of_the_probe_file_runs_in_the_engines_process(tmp_path: Path) -> None:
    file = tmp_path / "probe.py"
    caller, sent = engine(Engine)
    with pytest.raises(UsageError, match="write the function there"):
        caller.call("look")
    file.touch()
    caller.probe_file = file
    caller.call("look", value=1)
    assert (sent[0]["file"], sent[0]["function"], sent[0]["arguments"]) == (
        str(file),
        "look",
        {"value": 1},
    )
