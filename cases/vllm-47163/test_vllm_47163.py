"""vllm#47163: an image that is missing or broken must be answered with a 4xx status."""

from __future__ import annotations

import httpx
import pytest

from pytest_vllm_regress import AtWork, Server, png_url

pytestmark = pytest.mark.vllm_engine(front="serve", model="vision", max_model_len=1024)
case = pytest.mark.vllm_case
FAULTS = [
    pytest.param("is missing", marks=case("vllm-47163")),
    pytest.param("is truncated", marks=case("vllm-47163", variant="cut-off")),
]


def ask(server: Server, url: str) -> httpx.Response:
    content = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    messages = [{"role": "user", "content": content}]
    return server.post("/v1/chat/completions", {"model": server.model, "messages": messages, "max_tokens": 2})


@pytest.mark.parametrize("fault", FAULTS)
def test_unusable_image(vllm_server: Server, vllm_at_work: AtWork, fault: str) -> None:
    whole = png_url(56, 56)
    vllm_at_work("a complete image is accepted", ask(vllm_server, whole).status_code == 200)
    url = f"{vllm_server.root_url}/no-such-image.png" if fault == "is missing" else png_url(56, 56, keep=60)
    answer = ask(vllm_server, url)
    assert 400 <= answer.status_code < 500, (
        f"expected a 4xx for an image that {fault}, got {answer.status_code}: {answer.text[:300]}"
    )
    vllm_server.check()
