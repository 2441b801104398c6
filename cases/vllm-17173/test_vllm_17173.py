"""vllm#17173: a request for n results must bring n, through every way to ask."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytestmark = pytest.mark.vllm_case("vllm-17173")

SAMPLING = {"temperature": 1.0, "max_tokens": 8, "ignore_eos": True}
IMAGE_PROMPT = {"prompt": "<|vision_start|><|image_pad|><|vision_end|>What is this?", "image": {"size": [56, 56]}}
# A grey PNG of 56 by 56 pixels.
PIXELS = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAADgAAAA4CAIAAAAn5KxJAAAAP0lEQVR42u3OMQ0AAAwDoDqv9R5TsQQUkD4RUVFRUVFRUVFRUVFRUVFRUVFRUVFR"
    "UVFRUVFRUVFRUVFRUVHRMxgVPE+ICN2+AAAAAElFTkSuQmCC"
)

case = pytest.mark.vllm_case
V0 = case("vllm-17173", variant="v0")
NS = (1, 2, 8, 16)
TOGETHER = 12  # results are lost in a race, and not in every request


def forms(*kinds: str) -> list[Any]:
    """Every kind with every n, each with the variant of the failure that it shows."""
    return [
        pytest.param(
            kind, n, marks=case("vllm-17173", variant="one" if n == 1 else None if kind == "cumulative" else "whole")
        )
        for kind in kinds
        for n in NS
    ]


def check(results: list[tuple[int, Any]], n: int) -> None:
    """``results``: (index, content) of every result that came; contents differ at temperature 1."""
    assert len(results) == n, f"expected {n} results, got {len(results)}"
    assert sorted(index for index, _ in results) == list(range(n))
    if n > 1:
        assert len({repr(content) for _, content in results}) > 1, f"all {n} results are equal at temperature 1"


def ask_engine(engine: Any, n: int, kind: str | None = None) -> None:
    prompt = IMAGE_PROMPT if engine.spec.model == "vision" else "Hello"
    for answer in engine.generate([prompt] * TOGETHER, {**SAMPLING, "n": n}, output_kind=kind):
        tokens: dict[int, list[int]] = {}
        for output in (
            output for chunk in (answer if isinstance(answer, list) else [answer]) for output in chunk["outputs"]
        ):
            before = tokens.get(output["index"], []) if kind == "delta" else []
            tokens[output["index"]] = before + output["token_ids"]
        check(list(tokens.items()), n)


def ask_server(server: Any, n: int, stream: bool) -> None:
    content: Any = "Hello"
    if server.spec.model == "vision":
        content = [{"type": "image_url", "image_url": {"url": PIXELS}}, {"type": "text", "text": "What is this?"}]
    ask = server.stream_chat if stream else lambda *given, **options: [server.chat(*given, **options)]
    with ThreadPoolExecutor(TOGETHER) as pool:
        asked = [pool.submit(ask, [{"role": "user", "content": content}], n=n, **SAMPLING) for _ in range(TOGETHER)]
    for answer in asked:
        texts: dict[int, str] = {}
        came = set()  # a stream opens every choice, whether or not anything follows
        for choice in (choice for chunk in answer.result() for choice in chunk["choices"]):
            said = choice["delta" if stream else "message"].get("content") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + said
            came |= {choice["index"]} if said or choice.get("finish_reason") else set()
        check([(index, text) for index, text in texts.items() if index in came], n)


@pytest.mark.parametrize(("kind", "n"), forms("generate"))
@pytest.mark.vllm_engine(generation="V1", model=["text", "vision"])
def test_offline(vllm_engine: Any, kind: str, n: int) -> None:
    ask_engine(vllm_engine, n)


@pytest.mark.parametrize(("kind", "n"), forms("cumulative", "delta", "final_only"))
@pytest.mark.vllm_engine(front="async", generation="V1", model=["text", "vision"])
def test_async(vllm_engine: Any, n: int, kind: str) -> None:
    ask_engine(vllm_engine, n, kind)


@pytest.mark.parametrize(("kind", "n"), forms("answered", "streamed"))
@pytest.mark.vllm_engine(front="serve", generation="V1", model=["text", "vision"])
def test_http(vllm_server: Any, kind: str, n: int) -> None:
    ask_server(vllm_server, n, kind == "streamed")


@V0
@pytest.mark.parametrize("n", NS)
@pytest.mark.vllm_engine(generation="V0", model=["text", "vision"])
def test_offline_v0(vllm_engine: Any, n: int) -> None:
    ask_engine(vllm_engine, n)


@V0
@pytest.mark.parametrize("n", NS)
@pytest.mark.parametrize("kind", ["cumulative", "delta", "final_only"])
@pytest.mark.vllm_engine(front="async", generation="V0")
def test_async_v0(vllm_engine: Any, n: int, kind: str) -> None:
    ask_engine(vllm_engine, n, kind)


@V0
@pytest.mark.parametrize("n", [1, 8])
@pytest.mark.parametrize("stream", [False, True], ids=["answered", "streamed"])
@pytest.mark.vllm_engine(front="serve", generation="V0")
def test_http_v0(vllm_server: Any, n: int, stream: bool) -> None:
    ask_server(vllm_server, n, stream)
