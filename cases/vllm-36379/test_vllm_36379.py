"""vllm#36379: a stream must report its usage only if it was asked to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Server


@pytest.mark.vllm_case("vllm-36379")
@pytest.mark.vllm_engine(front="serve", generation="V1")
def test_empty_options(vllm_server: Server, vllm_at_work: AtWork) -> None:
    def chunks_with_usage(**options: Any) -> int:
        body = {"model": vllm_server.model, "prompt": "Hello", "max_tokens": 4, "stream": True, **options}
        answer = vllm_server.post("/v1/completions", body)
        chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        assert any(chunk["choices"] for chunk in chunks), "nothing was streamed"
        return sum(bool(chunk.get("usage")) for chunk in chunks)

    vllm_at_work(
        "the usage is reported if it is asked for", chunks_with_usage(stream_options={"include_usage": True}) == 1
    )
    vllm_at_work("and not without options", chunks_with_usage() == 0)
    reported = chunks_with_usage(stream_options={})
    assert reported == 0, f"{reported} chunk reports the usage that nobody asked for"
    vllm_server.check()
