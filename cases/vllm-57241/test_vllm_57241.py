"""vllm#57241: detail of an image is optional."""

from __future__ import annotations

import httpx
import pytest

from pytest_vllm_regress import AtWork, Server, png_url


@pytest.mark.vllm_case("vllm-57241")
@pytest.mark.vllm_requires(vllm=">=0.10")  # the first with /v1/responses
@pytest.mark.vllm_engine(front="serve", model="vision", generation="V1", max_model_len=1024)
def test_detail(vllm_server: Server, vllm_at_work: AtWork) -> None:
    def ask(**options: str) -> httpx.Response:
        image = {"type": "input_image", "image_url": png_url(56, 56), **options}
        turn = {"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, image]}
        body = {"model": vllm_server.model, "input": [turn], "max_output_tokens": 4}
        return vllm_server.post("/v1/responses", body)

    plain = ask(detail="auto")
    vllm_at_work("an image with detail is accepted", plain.status_code == 200 and plain.json()["output"])
    answer = ask()
    assert answer.status_code == 200, (
        f"an image without detail is answered with {answer.status_code}: {answer.text[:300]}"
    )
    vllm_server.check()
