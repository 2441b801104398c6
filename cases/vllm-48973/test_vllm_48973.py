"""vllm#48973: a data URL may have parameters."""

from __future__ import annotations

import httpx
import pytest

from pytest_vllm_regress import AtWork, Server, png_url


@pytest.mark.vllm_case("vllm-48973")
@pytest.mark.vllm_engine(front="serve", model="vision", max_model_len=1024)
def test_parameter(vllm_server: Server, vllm_at_work: AtWork) -> None:
    def ask(url: str) -> httpx.Response:
        content = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
        messages = [{"role": "user", "content": content}]
        return vllm_server.post(
            "/v1/chat/completions", {"model": vllm_server.model, "messages": messages, "max_tokens": 2}
        )

    url = png_url(56, 56)
    plain = ask(url)
    vllm_at_work("an image in a plain data URL is accepted", plain.status_code == 200 and plain.json()["choices"])
    answer = ask(url.replace(";base64,", ";name=picture.png;base64,"))
    assert answer.status_code == 200, (
        f"an image in a data URL with a parameter is answered with {answer.status_code}: {answer.text[:300]}"
    )
    vllm_server.check()
