"""What the target is asked for when a test asks for beams, priorities, sleep; and what is refused before it is asked."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from pytest_vllm_regress import AsyncEngine, Engine, EngineSpec, Script, tensor_base64
from pytest_vllm_regress.dialogue.embeddings import noise
from pytest_vllm_regress.engines.server import Server
from pytest_vllm_regress.errors import RemoteError, UsageError

from .test_server import unconnected

NEVER: Any = SimpleNamespace(admit=lambda asked: None, check=lambda: None)


def engine(kind: type[Engine] | type[AsyncEngine]) -> tuple[Any, list[dict[str, Any]]]:
    """An engine, and the requests that its child is sent; every one is answered by an empty list."""
    sent: list[dict[str, Any]] = []

    def request(operation: str, deadline: object, **arguments: Any) -> list[Any]:
        sent.append({"operation": operation, **arguments})
        return []

    child: Any = SimpleNamespace(request=request)
    return kind(child, EngineSpec.create(), SimpleNamespace(), lambda *given: None, NEVER), sent  # type: ignore[arg-type]


@pytest.mark.parametrize(("priority", "sent_as"), [(3, [3, 3]), ([1, 0], [1, 0])])
def test_a_priority_for_all_or_one_for_each(priority: Any, sent_as: list[int]) -> None:
    made, sent = engine(Engine)
    made.generate(["a", "b"], priority=priority)
    assert sent[0]["priority"] == sent_as


def test_as_many_priorities_as_prompts() -> None:
    made, sent = engine(AsyncEngine)
    with pytest.raises(UsageError, match="2 prompts, but 3 priorities: give one, or one for each prompt"):
        made.generate(["a", "b"], priority=[1, 2, 3])
    assert not sent


def test_what_is_not_asked_for_is_not_sent() -> None:
    made, sent = engine(AsyncEngine)
    made.generate("a")
    assert not {"priority", "in_turn", "abort_after", "adapters"} & set(sent[0])
    made.generate("a", in_turn=True)
    assert sent[1]["in_turn"] is True


@pytest.mark.parametrize("kind", [Engine, AsyncEngine])
def test_beams_follow_no_script(kind: type[Engine] | type[AsyncEngine]) -> None:
    made, sent = engine(kind)
    with pytest.raises(UsageError, match="a script cannot be followed"):
        made.beam_search(["plain", Script.text("said").prompt()], beam_width=2, max_tokens=3)
    assert not sent
    made.beam_search("plain", beam_width=2, max_tokens=3, length_penalty=0.5)
    assert sent[0]["params"] == {"beam_width": 2, "max_tokens": 3, "length_penalty": 0.5}
    assert sent[0]["prompts"] == ["plain"]


def server(status: int = 200, **spec: Any) -> tuple[Server, list[httpx.Request]]:
    """A server, and what it was asked; two beams in the wrong order are its only answer."""
    asked: list[httpx.Request] = []
    worse, best = ({"text": text, "message": {"content": f"{text} said"}} for text in ("worse", "best"))
    beams = {"choices": [{"index": 1, **worse}, {"index": 0, **best}], "is_sleeping": True}

    def respond(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(status, json=beams)

    made = unconnected(9, **spec)
    made.client = httpx.Client(base_url=made.root_url, transport=httpx.MockTransport(respond))
    return made, asked


def test_routes_for_developers_are_named_where_they_are_missing() -> None:
    made, asked = server()
    for method in (made.sleep, made.wake_up, made.is_sleeping, made.reset_prefix_cache):
        with pytest.raises(UsageError, match=f'{method.__name__} needs env={{"VLLM_SERVER_DEV_MODE": "1"}}'):
            method()
    assert not asked


def test_routes_for_developers() -> None:
    made, asked = server(env={"VLLM_SERVER_DEV_MODE": "1"})
    made.sleep(level=2)
    made.wake_up()
    made.reset_prefix_cache()
    assert made.is_sleeping()
    assert [f"{each.method} {each.url.raw_path.decode()}" for each in asked] == [
        *("POST /sleep?level=2", "POST /wake_up", "POST /reset_prefix_cache", "GET /is_sleeping")
    ]


def test_beams_over_http_come_best_first() -> None:
    made, asked = server()
    assert made.beam_search("Hello", beam_width=2, max_tokens=3, length_penalty=0.5) == ["best", "worse"]
    body = json.loads(asked[0].content)
    assert {name: body[name] for name in ("use_beam_search", "n", "max_tokens", "length_penalty")} == {
        "use_beam_search": True,
        "n": 2,
        "max_tokens": 3,
        "length_penalty": 0.5,
    }


def test_beams_of_a_conversation() -> None:
    made, asked = server()
    conversation = [{"role": "user", "content": "Hello"}]
    assert made.beam_search(conversation, beam_width=2, max_tokens=3) == ["best said", "worse said"]
    assert asked[0].url.path == "/v1/chat/completions" and json.loads(asked[0].content)["messages"] == conversation


@pytest.mark.parametrize("asked", ["Hello", [{"role": "user", "content": "Hello"}]])
def test_beams_of_an_unknown_model_are_no_missing_address(asked: Any) -> None:
    made, _ = server(status=404)
    with pytest.raises(RemoteError, match="HTTP 404"):
        made.beam_search(asked, beam_width=2, max_tokens=3, model="unloaded")


def test_beams_over_http_follow_no_script() -> None:
    made, asked = server()
    scripted = Script.text("said").prompt()
    for prompt in (scripted, [{"role": "user", "content": scripted}]):
        with pytest.raises(UsageError, match="a script cannot be followed"):
            made.beam_search(prompt, beam_width=2, max_tokens=3)
    assert not asked


@pytest.mark.parametrize("config", [{"hidden_size": 4}, {"hidden_size": 9, "text_config": {"hidden_size": 4}}])
def test_embeddings_are_as_wide_as_the_model(config: dict[str, Any], tmp_path: Path) -> None:
    made, _ = server()
    (tmp_path / "config.json").write_text(json.dumps(config))
    made.model_path = tmp_path
    assert made.prompt_embeds(3, seed=5) == tensor_base64(noise(3, 4, seed=5))
