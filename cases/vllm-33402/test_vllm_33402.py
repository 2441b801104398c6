"""vllm#33402: clients read the reasoning from reasoning_content."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Script, Server


@pytest.mark.vllm_case("vllm-33402")
@pytest.mark.vllm_engine(front="serve", generation="V1", server_options={"reasoning_parser": "deepseek_r1"})
@pytest.mark.parametrize("stream", [False, True], ids=["answer", "stream"])
def test_field(vllm_server: Server, vllm_at_work: AtWork, stream: bool) -> None:
    script = Script.text("<think>two and two</think>four")
    messages: list[dict[str, str]] = [{"role": "user", "content": script.prompt("2 + 2?")}]
    if stream:
        chunks = vllm_server.stream_chat(messages, max_tokens=60)
        parts = [dict(choice["delta"]) for chunk in chunks for choice in chunk["choices"]]
    else:
        parts = [dict(vllm_server.chat(messages, max_tokens=60)["choices"][0]["message"])]
    new, old = ("".join(str(part.get(name) or "") for part in parts) for name in ("reasoning", "reasoning_content"))
    vllm_at_work("the model's reasoning is told apart", "two and two" in (new or old))
    where = "stream" if stream else "answer"
    assert "two and two" in old, f"the {where} has the reasoning only as reasoning, not as reasoning_content"
    vllm_server.check()
