"""vllm#43941: a rejected request must leave nothing behind in the image cache."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from pytest_vllm_regress import AtWork, Server, png_url

pytestmark = [
    pytest.mark.vllm_case("vllm-43941"),
    pytest.mark.vllm_requires(vllm=">=0.8.4", cause="failure"),  # before, such a request ends the V1 engine
    pytest.mark.vllm_engine(front="serve", model="vision", generation="V1", max_model_len=1024, fresh=True),
]
REJECTED: dict[str, dict[str, Any]] = {"logit bias": {"logit_bias": {"999999999": 5}}, "min tokens": {"min_tokens": 50}}


@pytest.mark.parametrize("wrong", REJECTED)
def test_image_of_a_rejected_request(vllm_server: Server, vllm_at_work: AtWork, wrong: str) -> None:
    def ask(width: int, **options: Any) -> httpx.Response:
        content = [{"type": "image_url", "image_url": {"url": png_url(width, 56)}}]
        messages = [{"role": "user", "content": content}]
        body = {"model": vllm_server.model, "messages": messages, "max_tokens": 2, **options}
        return vllm_server.post("/v1/chat/completions", body)

    statuses = [ask(56).status_code for _ in range(2)]
    rejected = ask(84, **REJECTED[wrong]).status_code
    vllm_at_work(
        "repeated images are answered, and the wrong request is rejected", [*statuses, rejected] == [200, 200, 400]
    )
    repeated = ask(84)
    assert repeated.status_code == 200, (
        f"expected an answer about the image of the rejected request, got {repeated.status_code}: {repeated.text[:200]}"
    )
    vllm_server.check()
