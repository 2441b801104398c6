"""Requests with beam search, priorities, prompt embeddings or several images, and operations on
whole engines (sleep, caches)."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AsyncEngine, Engine, Server

pytestmark = pytest.mark.vllm_engine(generation=["V0", "V1"])
PRIORITY = {"scheduling_policy": "priority", "enable_prefix_caching": False}
LONG = {"max_tokens": 100, "ignore_eos": True}
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
ROUTES = {"VLLM_SERVER_DEV_MODE": "1"}
SLEEP = {"enable_sleep_mode": True}
CACHE: dict[str, Any] = {"enable_prefix_caching": True}


def test_beam_search(vllm_engine: Engine) -> None:
    (beams,) = vllm_engine.beam_search("Hello", beam_width=3, max_tokens=6, ignore_eos=True)
    logprobs = [beam["cumulative_logprob"] for beam in beams]
    assert len({tuple(beam["token_ids"]) for beam in beams}) == 3 and logprobs == sorted(
        logprobs, reverse=True
    )
    greedy = {"temperature": 0, "max_tokens": 6, "ignore_eos": True, "logprobs": 1}
    (result,) = vllm_engine.generate("Hello", greedy)
    assert logprobs[0] >= (result["outputs"][0]["cumulative_logprob"] or 0) - 1e-3


@pytest.mark.vllm_engine(front="async")
def test_beam_search_async(vllm_engine: AsyncEngine) -> None:
    hello, again, bye = vllm_engine.beam_search(
        ["Hello", "Hello", "Bye"], beam_width=3, max_tokens=6, ignore_eos=True
    )
    logprobs = [beam["cumulative_logprob"] for beam in hello]
    assert len({tuple(beam["token_ids"]) for beam in hello}) == 3 and logprobs == sorted(
        logprobs, reverse=True
    )
    assert {len(beam["token_ids"]) for beam in hello} == {len("Hello") + 6} and hello[0][
        "text"
    ].startswith("Hello")
    assert [beam["token_ids"] for beam in again] == [beam["token_ids"] for beam in hello]
    assert bye[0]["token_ids"][:3] == list(b"Bye")


def test_beam_search_over_http(vllm_server: Server) -> None:
    texts = vllm_server.beam_search("Hello", beam_width=4, max_tokens=6)
    assert len(texts) == 4 and len(set(texts)) > 1


def test_beam_search_in_chat(vllm_server: Server) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    texts = vllm_server.beam_search(messages, beam_width=4, max_tokens=6)
    assert len(texts) == 4 and len(set(texts)) > 1
    assert vllm_server.beam_search(messages, beam_width=4, max_tokens=6) == texts


@pytest.mark.vllm_engine(front="async", extra={**PRIORITY, "max_num_seqs": 1})
def test_priority_order(vllm_engine: AsyncEngine) -> None:
    streams = vllm_engine.generate(["Hello"] * 4, LONG, priority=[0, 3, 2, 1])
    assert sorted(range(4), key=lambda number: streams[number][-1]["arrival"]) == [0, 3, 2, 1]


@pytest.mark.vllm_engine(
    front="async",
    fresh=True,
    max_model_len=128,
    extra={**PRIORITY, "block_size": 32, "num_gpu_blocks_override": 6},
)
def test_priority_preempts(vllm_engine: AsyncEngine) -> None:
    """Two requests grow until the cache is full.

    The second one has a higher priority and finishes first.
    """
    low, high = vllm_engine.generate(["a" * 16, "b" * 16], LONG, priority=[1, 0], in_turn=True)
    assert [len(stream[-1]["outputs"][0]["token_ids"]) for stream in (low, high)] == [100, 100]
    assert low[0]["arrival"] < high[0]["arrival"] < high[-1]["arrival"] < low[-1]["arrival"]


@pytest.mark.vllm_engine(extra={**PRIORITY, "max_num_seqs": 1})
def test_priority_offline(vllm_engine: Engine) -> None:
    results = vllm_engine.generate(["one", "two", "three"], LONG, priority=[2, 1, 0])
    assert [len(result["outputs"][0]["token_ids"]) for result in results] == [100] * 3


@pytest.mark.vllm_engine(extra={**PRIORITY, "max_num_seqs": 1})
def test_priority_over_http(vllm_server: Server) -> None:
    bodies = [
        {"model": vllm_server.model, "prompt": "Hello", **LONG, "priority": rank}
        for rank in (5, 5, 5, 5, 5, 5, 0)
    ]
    answers = vllm_server.post_all("/v1/completions", bodies)
    assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [100] * 7
    waited = [answer.elapsed for answer in answers]
    assert sorted(waited).index(waited[-1]) <= 2


@pytest.mark.vllm_engine(extra={"enable_prompt_embeds": True})
def test_prompt_embeddings(vllm_engine: Engine) -> None:
    prompts: list[Any] = [{"embeds": {"length": 12, "seed": seed}} for seed in (1, 2, 1)]
    results = vllm_engine.generate(
        [*prompts, "Hello"], {"temperature": 0, "max_tokens": 9, "ignore_eos": True}
    )
    first, second, again, text = (result["outputs"][0]["token_ids"] for result in results)
    assert first == again and len({tuple(ids) for ids in (first, second, text)}) == 3


@pytest.mark.vllm_engine(extra={"enable_prompt_embeds": True})
def test_prompt_embeddings_over_http(vllm_server: Server) -> None:
    greedy = {"model": vllm_server.model, "temperature": 0, "max_tokens": 9, "ignore_eos": True}
    values = [vllm_server.prompt_embeds(12, seed=seed) for seed in (1, 2, 1)]
    answers = [
        vllm_server.post("/v1/completions", {**greedy, "prompt_embeds": value}).json()
        for value in values
    ]
    first, second, again = (answer["choices"][0]["text"] for answer in answers)
    assert first == again != second and {
        answer["usage"]["completion_tokens"] for answer in answers
    } == {9}


@pytest.mark.vllm_engine(
    model="vision", max_model_len=1024, extra={"limit_mm_per_prompt": {"image": 2}}
)
def test_two_images(vllm_engine: Engine) -> None:
    sizes = [{"size": [56, 56]}, {"size": [112, 56], "color": [9, 9, 99]}]
    prompts: list[Any] = [{"prompt": IMAGE * count, "images": sizes[:count]} for count in (1, 2)]
    single, pair = vllm_engine.generate(prompts, {"max_tokens": 3, "ignore_eos": True})
    pads = len(pair["prompt_token_ids"]) - len(single["prompt_token_ids"]) - 2
    assert pads == 2 * (len(single["prompt_token_ids"]) - 2)  # the second image is twice as wide


@pytest.mark.vllm_engine(extra=SLEEP)
def test_sleep(vllm_engine: Engine) -> None:
    greedy = {"temperature": 0, "max_tokens": 9, "ignore_eos": True}
    (before,) = vllm_engine.generate("Hello", greedy)
    vllm_engine.sleep(level=1)
    vllm_engine.wake_up()
    (after,) = vllm_engine.generate("Hello", greedy)
    assert after["outputs"][0]["token_ids"] == before["outputs"][0]["token_ids"]


@pytest.mark.vllm_engine(front="async", extra=SLEEP)
def test_sleep_async(vllm_engine: AsyncEngine) -> None:
    vllm_engine.sleep(level=1)
    vllm_engine.wake_up()
    vllm_engine.check()


@pytest.mark.vllm_engine(extra=SLEEP, env=ROUTES)
def test_sleep_over_http(vllm_server: Server) -> None:
    vllm_server.sleep(level=1)
    assert vllm_server.is_sleeping()
    vllm_server.wake_up()
    assert not vllm_server.is_sleeping()
    vllm_server.check()


@pytest.mark.vllm_engine(extra=CACHE)
def test_reset_prefix_cache(vllm_engine: Engine) -> None:
    greedy = {"temperature": 0, "max_tokens": 9, "ignore_eos": True}
    before = vllm_engine.generate("a prompt of several blocks; " * 4, greedy)[0]["outputs"][0][
        "token_ids"
    ]
    vllm_engine.reset_prefix_cache()
    assert (
        vllm_engine.generate("a prompt of several blocks; " * 4, greedy)[0]["outputs"][0][
            "token_ids"
        ]
        == before
    )


@pytest.mark.vllm_engine(
    extra=CACHE, env=ROUTES, server_options={"enable_prompt_tokens_details": True}
)
def test_reset_prefix_cache_over_http(vllm_server: Server) -> None:
    prompt = "a prompt of several blocks, asked for three times; " * 3
    assert vllm_server.cached_tokens(prompt) == 0 and vllm_server.cached_tokens(prompt) > 0
    vllm_server.reset_prefix_cache()
    assert vllm_server.cached_tokens(prompt) == 0
