"""vllm#15080: a small image must be accepted."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Server, png_url

pytestmark = [
    pytest.mark.vllm_case("vllm-15080"),
    pytest.mark.vllm_engine(front="serve", model="vision", max_model_len=1024),
]


@pytest.mark.parametrize(("width", "height"), [(26, 28), (500, 19), (1, 1)])
def test_small_image(vllm_server: Server, vllm_at_work: AtWork, width: int, height: int) -> None:
    def ask(url: str) -> tuple[int, str]:
        messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
        body = {"model": vllm_server.model, "messages": messages, "max_tokens": 2}
        answer = vllm_server.post("/v1/chat/completions", body)
        return answer.status_code, answer.text[:300]

    vllm_at_work("an image of two patches is accepted", ask(png_url(56, 56))[0] == 200)
    status, text = ask(png_url(width, height))
    assert status == 200, f"expected an answer about an image of {width}x{height}, got {status}: {text}"
    vllm_server.check()
