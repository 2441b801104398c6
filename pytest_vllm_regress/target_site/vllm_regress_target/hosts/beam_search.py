"""Beam search by an engine in this process: all prompts at once offline, one by one with an
asynchronous engine."""

import asyncio
from typing import Any, Dict, List

from ..dialect import engines, installed, known

Json = Dict[str, Any]


def offline(engine: Any, prompts: List[Any], params: Any) -> List[List[Json]]:
    """Return the beams of ``LLM.beam_search`` for each prompt, the best one first."""
    with engines.as_unsupported():
        outputs = engine.beam_search(prompts, params)
    return [
        [_beam(beam, beam.text, beam.tokens, beam.cum_logprob) for beam in output.sequences]
        for output in outputs
    ]


async def asynchronous(
    engine: Any, prompts: List[Any], params: Any, first: int
) -> List[List[Json]]:
    """Like ``offline``, for an asynchronous engine. Request numbers begin at ``first``.

    Raises ``Unsupported`` if the engine has no beam search.
    """
    if not hasattr(engine, "beam_search"):
        raise known.missing_feature("beam search by the asynchronous engine", installed.version())
    tokenizer = await engine.get_tokenizer()
    tokenized = [_tokenized(prompt, tokenizer) for prompt in prompts]
    searches = (
        _search(engine, prompt, params, "regress-{}".format(number))
        for number, prompt in enumerate(tokenized, first)
    )
    return list(await asyncio.gather(*searches))


def _tokenized(prompt: Json, tokenizer: Any) -> Json:
    """Return the prompt with its tokens, which vLLM 0.10 requires."""
    if "prompt_token_ids" in prompt or "prompt" not in prompt:
        return prompt
    return {**prompt, "prompt_token_ids": tokenizer.encode(prompt["prompt"])}


async def _search(engine: Any, prompt: Json, params: Any, request_id: str) -> List[Json]:
    with engines.as_unsupported():
        async for output in engine.beam_search(prompt, request_id, params):
            if output.finished:
                text, tokens = prompt.get("prompt") or "", list(output.prompt_token_ids)
                return [
                    _beam(
                        beam,
                        text + beam.text,
                        tokens + list(beam.token_ids),
                        beam.cumulative_logprob,
                    )
                    for beam in output.outputs
                ]
    raise RuntimeError("the beam search {} ended without an answer".format(request_id))


def _beam(beam: Any, text: str, tokens: Any, logprob: Any) -> Json:
    """Return a beam as the controller's ``Beam``, whose text and tokens include the prompt."""
    return {
        "text": text,
        "token_ids": list(tokens),
        "cumulative_logprob": float(logprob),
        "finish_reason": beam.finish_reason,
        "stop_reason": beam.stop_reason,
    }
