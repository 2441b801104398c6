"""vllm#27987: two requests may have the same X-Request-Id."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from pytest_vllm_regress import AtWork, Server


@pytest.mark.vllm_case("vllm-27987")
@pytest.mark.vllm_engine(front="serve", generation="V1")
def test_same_id(vllm_server: Server, vllm_at_work: AtWork) -> None:
    body = {"model": vllm_server.model, "prompt": "Hello", "max_tokens": 400, "ignore_eos": True}

    def ask(number: str) -> httpx.Response:
        headers = {"X-Request-Id": number}
        return vllm_server.client.post("/v1/completions", json=body, headers=headers, timeout=60)

    with ThreadPoolExecutor(8) as threads:
        different = [*threads.map(ask, "abcdefgh")]
        tokens = [answer.json()["usage"]["completion_tokens"] for answer in different]
        vllm_at_work("concurrent requests with different ids are answered", tokens == [400] * 8)
        same = [*threads.map(ask, ["same"] * 8)]
    rejected = [answer for answer in same if answer.status_code != 200]
    assert not rejected, (
        f"{len(rejected)} of 8 requests with the same id are answered with {rejected[0].status_code}:"
        f" {rejected[0].text[:300]}"
    )
    vllm_server.check()
