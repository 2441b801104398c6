"""vllm#35557: an image in a message must arrive with its type."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe


@pytest.mark.vllm_case("vllm-35557")
def test_image(vllm_probe: Probe, vllm_at_work: AtWork) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    content = [{"type": "text", "text": "What is it?"}, {"type": "image", "source": source}]
    (message,) = vllm_probe("chat_messages", messages=[{"role": "user", "content": content}])
    text, image = message["content"]
    vllm_at_work("text and image are translated", text["text"] == "What is it?" and image["type"] == "image_url")
    url = image["image_url"]["url"]
    assert url == f"data:image/png;base64,{source['data']}", f"the image has the address {url!r}"
