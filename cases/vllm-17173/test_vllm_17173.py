"""vllm#17173: a request for n results must bring n, through every way to ask."""

from __future__ import annotations

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

V0 = pytest.mark.vllm_case("vllm-17173", variant="v0")
ONE = pytest.param(1, marks=pytest.mark.vllm_case("vllm-17173", variant="one"))
each_n = pytest.mark.parametrize("n", [ONE, 2, 8, 16])
each_kind = pytest.mark.parametrize("kind", ["cumulative", "delta", "final_only"])
streamed = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def check(results: list[tuple[int, Any]], n: int) -> None:
    """``results``: (index, content) of every result that came; contents differ at temperature 1."""
    assert len(results) == n, f"expected {n} results, got {len(results)}"
    assert sorted(index for index, _ in results) == list(range(n))
    if n > 1:
        assert len({repr(content) for _, content in results}) > 1, f"all {n} results are equal at temperature 1"


def ask_engine(engine: Any, n: int, kind: str | None = None) -> None:
    prompt = IMAGE_PROMPT if engine.spec.model == "vision" else "Hello"
    answer = engine.generate(prompt, {**SAMPLING, "n": n}, output_kind=kind)[0]
    chunks = answer if isinstance(answer, list) else [answer]
    tokens: dict[int, list[int]] = {}
    for output in (output for chunk in chunks for output in chunk["outputs"]):
        before = tokens.get(output["index"], []) if kind == "delta" else []
        tokens[output["index"]] = before + output["token_ids"]
    check(list(tokens.items()), n)


def ask_server(server: Any, n: int, stream: bool) -> None:
    content: Any = "Hello"
    if server.spec.model == "vision":
        content = [{"type": "image_url", "image_url": {"url": PIXELS}}, {"type": "text", "text": "What is this?"}]
    ask = server.stream_chat if stream else server.chat
    answer = ask([{"role": "user", "content": content}], n=n, **SAMPLING)
    texts: dict[int, str] = {}
    for choice in (choice for chunk in (answer if stream else [answer]) for choice in chunk["choices"]):
        said = choice["delta" if stream else "message"].get("content") or ""
        texts[choice["index"]] = texts.get(choice["index"], "") + said
    check(list(texts.items()), n)


@each_n
@pytest.mark.vllm_engine(generation="V1", model=["text", "vision"])
def test_offline(vllm_engine: Any, n: int) -> None:
    ask_engine(vllm_engine, n)


@each_n
@each_kind
@pytest.mark.vllm_engine(front="async", generation="V1", model=["text", "vision"])
def test_async(vllm_engine: Any, n: int, kind: str) -> None:
    ask_engine(vllm_engine, n, kind)


@each_n
@streamed
@pytest.mark.vllm_engine(front="serve", generation="V1", model=["text", "vision"])
def test_http(vllm_server: Any, n: int, stream: bool) -> None:
    ask_server(vllm_server, n, stream)


@V0
@pytest.mark.parametrize("n", [1, 2, 8, 16])
@pytest.mark.vllm_engine(generation="V0", model=["text", "vision"])
def test_offline_v0(vllm_engine: Any, n: int) -> None:
    ask_engine(vllm_engine, n)


@V0
@pytest.mark.parametrize("n", [1, 2, 8, 16])
@each_kind
@pytest.mark.vllm_engine(front="async", generation="V0")
def test_async_v0(vllm_engine: Any, n: int, kind: str) -> None:
    ask_engine(vllm_engine, n, kind)


@V0
@streamed
@pytest.mark.parametrize("n", [1, 8])
@pytest.mark.vllm_engine(front="serve", generation="V0")
def test_http_v0(vllm_server: Any, n: int, stream: bool) -> None:
    ask_server(vllm_server, n, stream)
