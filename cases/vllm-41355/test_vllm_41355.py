"""vllm#41355: /v1/responses must take back a reasoning item without content, whichever class pydantic validates it as."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Server


def status(answer: Any) -> int:
    """Return the status of an answer. vLLM 0.15 and 0.16 send errors with status 200 and the real status in the body."""
    error = answer.json().get("error") if answer.status_code == 200 else None
    return int(error["code"]) if error else int(answer.status_code)


@pytest.mark.vllm_case("vllm-41355")
@pytest.mark.vllm_requires(pydantic=">=2.13.5")  # with others it is vllm-34499
@pytest.mark.vllm_engine(front="serve", generation="V1")
def test_reasoning_item_without_content(vllm_server: Server, vllm_at_work: AtWork) -> None:
    def ask(*items: dict[str, Any]) -> Any:
        turns = [{"role": "user", "content": "Hello"}, *items, {"role": "user", "content": "And?"}]
        return vllm_server.post("/v1/responses", {"model": vllm_server.model, "input": turns, "max_output_tokens": 4})

    vllm_at_work("the same conversation without the item is answered", status(ask()) == 200)
    answer = ask({"type": "reasoning", "id": "rs_1", "summary": []})
    assert status(answer) == 200, (
        f"a reasoning item without content is answered with {status(answer)}: {answer.text[:500]}"
    )
    vllm_server.check()
