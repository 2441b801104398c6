"""Beams have the same form from offline and asynchronous engines."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target import Unsupported
from pytest_vllm_regress.target_site.vllm_regress_target.hosts import engine as host

END = {"finish_reason": "length", "stop_reason": None}
WHOLE = {"text": "ab", "token_ids": [97, 98], "cumulative_logprob": -1.0, **END}


class Asynchronous:
    """Answers each prompt with one beam that continues with ``b``, and records request ids.

    Like 0.10, it needs the prompt's tokens.
    """

    request_ids: tuple[str, ...] = ()

    async def get_tokenizer(self) -> Any:
        return SimpleNamespace(encode=lambda text: list(text.encode()))

    async def beam_search(self, prompt: Any, request_id: str, params: Any) -> AsyncIterator[Any]:
        self.request_ids += (request_id,)
        beam = SimpleNamespace(text="b", token_ids=(98,), cumulative_logprob=-1.0, **END)
        yield SimpleNamespace(
            finished=True, prompt_token_ids=prompt["prompt_token_ids"], outputs=[beam]
        )


def test_offline_and_asynchronous_beams_have_the_same_form() -> None:
    sequence = SimpleNamespace(text="ab", tokens=[97, 98], cum_logprob=-1, **END)
    llm = SimpleNamespace(
        beam_search=lambda prompts, params: [SimpleNamespace(sequences=[sequence])]
    )
    prompts = [{"prompt": "a"}]
    assert host.beams(llm, prompts, None) == [[WHOLE]]
    engine = Asynchronous()
    assert asyncio.run(host.async_beams(engine, prompts * 2, None)) == [[WHOLE], [WHOLE]]
    assert len(set(engine.request_ids)) == 2
    tokens = {**WHOLE, "text": "b"}
    assert asyncio.run(host.async_beams(engine, [{"prompt_token_ids": [97]}], None)) == [[tokens]]


def test_an_asynchronous_engine_without_beam_search_is_unsupported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vllm: Any = ModuleType("vllm")
    vllm.__version__ = "0.11.2"
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    with pytest.raises(Unsupported, match="beam search by the asynchronous engine") as caught:
        asyncio.run(host.async_beams(SimpleNamespace(), ["a"], None))
    assert caught.value.claim == {"until": "0.11.0"}
