"""LoRA adapters: one for each request of a batch, loaded and unloaded, two with the same name, and
ones that vLLM must reject."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import Adapter, Engine, RemoteError, RequestOutput, Server

LORA = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
pytestmark = pytest.mark.vllm_engine(extra=LORA, generation=["V0", "V1"])
GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
HELLO = [{"role": "user", "content": "Hello"}]


def tokens(results: list[RequestOutput]) -> list[list[int]]:
    return [result["outputs"][0]["token_ids"] for result in results]


def test_each_request_its_own(vllm_engine: Engine) -> None:
    small, large = Adapter("one", rank=4), Adapter("two", rank=8, seed=1)
    base, first, second, again = tokens(
        vllm_engine.generate(["Hello"] * 4, GREEDY, adapters=[None, small, large, small])
    )
    assert first == again and len({tuple(ids) for ids in (base, first, second)}) == 3
    assert tokens(vllm_engine.generate(["Hello"], GREEDY)) == [base]
    assert tokens(vllm_engine.generate(["Hello"], GREEDY, adapters=large)) == [second]


def test_two_of_one_name(vllm_engine: Engine) -> None:
    first, second = tokens(
        vllm_engine.generate(
            ["Hello"] * 2, GREEDY, adapters=[Adapter("same", seed=1), Adapter("same", seed=2)]
        )
    )
    assert first != second


def test_load_and_unload(vllm_server: Server) -> None:
    vllm_server.load_adapter(Adapter("mine", rank=4))
    adapted = vllm_server.chat(HELLO, model="mine", **GREEDY)["choices"][0]["message"]["content"]
    assert adapted != vllm_server.chat(HELLO, **GREEDY)["choices"][0]["message"]["content"]
    vllm_server.unload_adapter("mine")
    with pytest.raises(RemoteError, match="404"):
        vllm_server.chat(HELLO, model="mine", **GREEDY)


def test_replace(vllm_server: Server) -> None:
    answers = []
    for seed in (1, 2):
        vllm_server.load_adapter(Adapter("replaced", rank=4, seed=seed), replace=seed > 1)
        answers.append(
            vllm_server.chat(HELLO, model="replaced", **GREEDY)["choices"][0]["message"]["content"]
        )
    assert answers[0] != answers[1]


def test_rank_too_high(vllm_server: Server) -> None:
    with pytest.raises(RemoteError, match=r"(?i)rank|HTTP (400|500)"):
        vllm_server.load_adapter(Adapter("wide", rank=16))
    vllm_server.check()


def test_broken_weights(vllm_server: Server) -> None:
    with pytest.raises(RemoteError, match=r"HTTP (400|500)"):
        vllm_server.load_adapter(Adapter("broken", rank=4, broken=True))
    vllm_server.check()
