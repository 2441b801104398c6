"""vllm-project/vllm#30264: a request that truncates its prompt must be answered while another text is tokenized."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Server

TEXT = "lorem ipsum dolor " * 60_000  # its tokenization takes a second or so


@pytest.mark.vllm_case("vllm-30264")
@pytest.mark.vllm_engine(front="serve", max_model_len=256)
def test_truncated_prompt_during_a_tokenization(vllm_server: Server, vllm_at_work: AtWork) -> None:
    def post(path: str, **body: Any) -> tuple[int, str]:
        answer = vllm_server.post(path, {"model": vllm_server.model, "prompt": "Hello", **body})
        return answer.status_code, answer.text[:500]

    def truncate() -> tuple[int, str]:
        return post("/v1/completions", truncate_prompt_tokens=3, max_tokens=1)

    works = post("/tokenize")[0] == truncate()[0] == 200
    vllm_at_work("one after the other, a text is tokenized and a truncated prompt answered", works)
    with ThreadPoolExecutor(1) as pool:
        tokenization = pool.submit(post, "/tokenize", prompt=TEXT)
        answers = []
        while not tokenization.done():
            answers.append(truncate())
    vllm_at_work("truncated prompts were sent during the tokenization", bool(answers))
    for status, text in [tokenization.result(), *answers]:
        assert status == 200, f"answered with {status}: {text or 'nothing'}"
    vllm_server.check()
