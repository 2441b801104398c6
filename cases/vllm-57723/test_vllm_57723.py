"""vllm#57723: the outlines backend must accept the end of an answer."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Server


@pytest.mark.vllm_case("vllm-57723")
@pytest.mark.vllm_requires(vllm=">=0.11")  # earlier releases call it guided decoding
@pytest.mark.vllm_engine(
    front="serve", generation="V1", extra={"structured_outputs_config": {"backend": "outlines"}}, fresh=True
)
def test_choice(vllm_server: Server, vllm_at_work: AtWork) -> None:
    body = {"model": vllm_server.model, "prompt": "Yes or no?", "max_tokens": 20}
    cut = vllm_server.post(
        "/v1/completions", {**body, "max_tokens": 1, "structured_outputs": {"choice": ["yes", "no"]}}
    )
    vllm_at_work("a choice is obeyed", cut.status_code == 200 and cut.json()["choices"][0]["text"][:1] in ("y", "n"))
    answer = vllm_server.post("/v1/completions", {**body, "structured_outputs": {"choice": ["yes", "no"]}})
    assert answer.status_code == 200, (
        f"with the outlines backend a choice is answered with {answer.status_code}: {answer.text[:300]}"
    )
    vllm_server.check()
