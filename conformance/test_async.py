"""The asynchronous engine: streams, aborts, many concurrent requests."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AsyncEngine

pytestmark = pytest.mark.vllm_engine(front="async", generation=["V0", "V1"])
LONG = {"max_tokens": 24, "ignore_eos": True}


@pytest.mark.parametrize("kind", ["cumulative", "delta", "final_only"])
def test_stream(vllm_engine: AsyncEngine, kind: str) -> None:
    (stream,) = vllm_engine.generate(
        "Hello", {"max_tokens": 300, "ignore_eos": True}, output_kind=kind
    )
    counts = [len(result["outputs"][0]["token_ids"]) for result in stream]
    assert [result["finished"] for result in stream] == [False] * (len(stream) - 1) + [True]
    # A busy reader gets several steps in one result, so the number of results varies.
    assert len(counts) == 1 if kind == "final_only" else len(counts) > 1
    assert sum(counts) == 300 if kind == "delta" else counts[-1] == 300


@pytest.mark.parametrize("kind", ["cumulative", "final_only"])
def test_n_8(vllm_engine: AsyncEngine, kind: str) -> None:
    (stream,) = vllm_engine.generate("Hello", {**LONG, "n": 8}, output_kind=kind)
    latest = {
        output["index"]: len(output["token_ids"])
        for result in stream
        for output in result["outputs"]
    }
    assert stream[-1]["finished"] and latest == dict.fromkeys(range(8), 24)


def test_abort(vllm_engine: AsyncEngine) -> None:
    (stream,) = vllm_engine.generate(
        "Hello", {"max_tokens": 400, "ignore_eos": True}, abort_after=3
    )
    assert len(stream) == 3 and not stream[-1]["finished"]
    vllm_engine.check()


def test_200_at_once(vllm_engine: AsyncEngine) -> None:
    streams = vllm_engine.generate(
        [f"request {number}" for number in range(200)], {"max_tokens": 16, "ignore_eos": True}
    )
    assert [len(stream[-1]["outputs"][0]["token_ids"]) for stream in streams] == [16] * 200


@pytest.mark.vllm_engine(fresh=True)
def test_stop(vllm_engine: AsyncEngine) -> None:
    vllm_engine.check()
    assert vllm_engine.stop() == ()
