"""vllm#17173: a request for n results must return n, through every interface."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pytest_vllm_regress import AsyncEngine, AtWork, Engine, Server

pytestmark = pytest.mark.vllm_case("vllm-17173")

SAMPLING = {"temperature": 1.0, "max_tokens": 8, "ignore_eos": True}
IMAGE_PROMPT = {"prompt": "<|vision_start|><|image_pad|><|vision_end|>What is this?", "image": {"size": [56, 56]}}
# A grey PNG of 56 x 56 pixels.
PIXELS = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAADgAAAA4CAIAAAAn5KxJAAAAP0lEQVR42u3OMQ0AAAwDoDqv9R5TsQQUkD4RUVFRUVFRUVFRUVFRUVFRUVFRUVFR"
    "UVFRUVFRUVFRUVFRUVHRMxgVPE+ICN2+AAAAAElFTkSuQmCC"
)

case = pytest.mark.vllm_case
V0 = case("vllm-17173", variant="v0")
NS = (1, 2, 8, 16)
TOGETHER = 12  # results are lost in a race, not in every request


def forms(*kinds: str) -> list[Any]:
    """Return every kind with every n, marked with the variant of the failure that it can show."""
    return [
        pytest.param(
            kind, n, marks=case("vllm-17173", variant="one" if n == 1 else None if kind == "cumulative" else "whole")
        )
        for kind in kinds
        for n in NS
    ]


def check(results: list[tuple[int, Any]], n: int) -> None:
    """Assert that ``results``, (index, content) of every result, are complete and differ at temperature 1."""
    assert len(results) == n, f"expected {n} results, got {len(results)}"
    assert sorted(index for index, _ in results) == list(range(n))
    if n > 1:
        assert len({repr(content) for _, content in results}) > 1, f"all {n} results are equal at temperature 1"


def ask_engine(engine: Engine | AsyncEngine, n: int, at_work: AtWork, kind: str | None = None) -> None:
    prompt = IMAGE_PROMPT if engine.spec.model == "vision" else "Hello"
    (one,) = engine.generate(prompt, {**SAMPLING, "n": 1}, output_kind=kind)
    last = one[-1] if isinstance(one, list) else one
    at_work("a request for one result returns one", len(last["outputs"]) == 1)
    for answer in engine.generate([prompt] * TOGETHER, {**SAMPLING, "n": n}, output_kind=kind):
        tokens: dict[int, list[int]] = {}
        for output in (
            output for chunk in (answer if isinstance(answer, list) else [answer]) for output in chunk["outputs"]
        ):
            before = tokens.get(output["index"], []) if kind == "delta" else []
            tokens[output["index"]] = before + output["token_ids"]
        check(list(tokens.items()), n)


def choices(server: Server, content: object, n: int, stream: bool) -> list[tuple[int, str, bool]]:
    """Return the index, text and end marker of every choice, chunk by chunk if streamed."""
    messages = [{"role": "user", "content": content}]
    if stream:
        pieces = [piece for chunk in server.stream_chat(messages, n=n, **SAMPLING) for piece in chunk["choices"]]
        return [
            (piece["index"], piece["delta"].get("content") or "", bool(piece.get("finish_reason"))) for piece in pieces
        ]
    whole = server.chat(messages, n=n, **SAMPLING)["choices"]
    return [(choice["index"], choice["message"]["content"] or "", bool(choice["finish_reason"])) for choice in whole]


def ask_server(server: Server, n: int, stream: bool, at_work: AtWork) -> None:
    content: object = "Hello"
    if server.spec.model == "vision":
        content = [{"type": "image_url", "image_url": {"url": PIXELS}}, {"type": "text", "text": "What is this?"}]
    at_work(
        "a request for one result returns one", {index for index, _, _ in choices(server, content, 1, stream)} == {0}
    )
    with ThreadPoolExecutor(TOGETHER) as pool:
        requests = [pool.submit(choices, server, content, n, stream) for _ in range(TOGETHER)]
    for request in requests:
        texts: dict[int, str] = {}
        received = set()  # a stream opens every choice, even one that stays empty
        for index, text, ended in request.result():
            texts[index] = texts.get(index, "") + text
            received |= {index} if text or ended else set()
        check([(index, text) for index, text in texts.items() if index in received], n)


@pytest.mark.parametrize(("kind", "n"), forms("generate"))
@pytest.mark.vllm_engine(generation="V1", model=["text", "vision"])
def test_offline(vllm_engine: Engine, kind: str, n: int, vllm_at_work: AtWork) -> None:
    ask_engine(vllm_engine, n, vllm_at_work)


@pytest.mark.parametrize(("kind", "n"), forms("cumulative", "delta", "final_only"))
@pytest.mark.vllm_engine(front="async", generation="V1", model=["text", "vision"])
def test_async(vllm_engine: AsyncEngine, n: int, kind: str, vllm_at_work: AtWork) -> None:
    ask_engine(vllm_engine, n, vllm_at_work, kind)


@pytest.mark.parametrize(("kind", "n"), forms("answered", "streamed"))
@pytest.mark.vllm_engine(front="serve", generation="V1", model=["text", "vision"])
def test_http(vllm_server: Server, kind: str, n: int, vllm_at_work: AtWork) -> None:
    ask_server(vllm_server, n, kind == "streamed", vllm_at_work)


@V0
@pytest.mark.parametrize("n", NS)
@pytest.mark.vllm_engine(generation="V0", model=["text", "vision"])
def test_offline_v0(vllm_engine: Engine, n: int, vllm_at_work: AtWork) -> None:
    ask_engine(vllm_engine, n, vllm_at_work)


@V0
@pytest.mark.parametrize("n", NS)
@pytest.mark.parametrize("kind", ["cumulative", "delta", "final_only"])
@pytest.mark.vllm_engine(front="async", generation="V0")
def test_async_v0(vllm_engine: AsyncEngine, n: int, kind: str, vllm_at_work: AtWork) -> None:
    ask_engine(vllm_engine, n, vllm_at_work, kind)


@V0
@pytest.mark.parametrize("n", [1, 8])
@pytest.mark.parametrize("stream", [False, True], ids=["answered", "streamed"])
@pytest.mark.vllm_engine(front="serve", generation="V0")
def test_http_v0(vllm_server: Server, n: int, stream: bool, vllm_at_work: AtWork) -> None:
    ask_server(vllm_server, n, stream, vllm_at_work)
