"""Beams in one shape, from engines of both kinds."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target import Unsupported
from pytest_vllm_regress.target_site.vllm_regress_target.hosts import beams

END = {"finish_reason": "length", "stop_reason": None}
WHOLE = {"text": "ab", "token_ids": [97, 98], "cumulative_logprob": -1.0, **END}


class Asynchronous:
    """Answers each prompt by one beam that goes on with ``b``, and says what it was asked. It wants tokens, as 0.10 does."""

    asked: tuple[str, ...] = ()

    async def get_tokenizer(self) -> Any:
        return SimpleNamespace(encode=lambda text: list(text.encode()))

    async def beam_search(self, prompt: Any, request_id: str, params: Any) -> AsyncIterator[Any]:
        self.asked += (request_id,)
        beam = SimpleNamespace(text="b", token_ids=(98,), cumulative_logprob=-1.0, **END)
        yield SimpleNamespace(finished=True, prompt_token_ids=prompt["prompt_token_ids"], outputs=[beam])


def test_offline_and_asynchronous_alike() -> None:
    sequence = SimpleNamespace(text="ab", tokens=[97, 98], cum_logprob=-1, **END)
    llm = SimpleNamespace(beam_search=lambda prompts, params: [SimpleNamespace(sequences=[sequence])])
    prompts = [{"prompt": "a"}]
    assert beams.offline(llm, prompts, None) == [[WHOLE]]
    engine = Asynchronous()
    assert asyncio.run(beams.asynchronous(engine, prompts * 2, None, 7)) == [[WHOLE], [WHOLE]]
    assert engine.asked == ("regress-7", "regress-8")
    tokens = {**WHOLE, "text": "b"}
    assert asyncio.run(beams.asynchronous(engine, [{"prompt_token_ids": [97]}], None, 9)) == [[tokens]]


def test_an_asynchronous_engine_without_beams(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = ModuleType("vllm")
    made.__version__ = "0.11.2"
    monkeypatch.setitem(sys.modules, "vllm", made)
    with pytest.raises(Unsupported, match="beam search by the asynchronous engine") as caught:
        asyncio.run(beams.asynchronous(SimpleNamespace(), ["a"], None, 1))
    assert caught.value.claim == {"until": "0.10.2"}
