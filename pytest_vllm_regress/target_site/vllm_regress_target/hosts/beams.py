"""Beam search by an engine in this process: offline for all prompts together, asynchronously for each by itself."""

import asyncio
from typing import Any, Dict, List

from ..dialect import engines, known

Json = Dict[str, Any]


def offline(engine: Any, prompts: List[Any], params: Any) -> List[List[Json]]:
    """What ``LLM.beam_search`` finds for each prompt, the best first."""
    with engines.refusals():
        found = engine.beam_search(prompts, params)
    return [[_beam(each, each.text, each.tokens, each.cum_logprob) for each in one.sequences] for one in found]


async def asynchronous(engine: Any, prompts: List[Any], params: Any, first: int) -> List[List[Json]]:
    """The same from an asynchronous engine; requests are numbered from ``first``. Raises ``Unsupported`` where it has no beam search."""
    if not hasattr(engine, "beam_search"):
        raise known.without("beam search by the asynchronous engine", engines.version())
    tokenizer = await engine.get_tokenizer()
    given = [_tokenized(each, tokenizer) for each in prompts]
    asked = (_searched(engine, each, params, "regress-{}".format(first + at)) for at, each in enumerate(given))
    return list(await asyncio.gather(*asked))


def _tokenized(prompt: Json, tokenizer: Any) -> Json:
    """With its tokens, as vLLM's server gives it: 0.10 wants them."""
    if "prompt_token_ids" in prompt or "prompt" not in prompt:
        return prompt
    return {**prompt, "prompt_token_ids": tokenizer.encode(prompt["prompt"])}


async def _searched(engine: Any, prompt: Json, params: Any, request_id: str) -> List[Json]:
    with engines.refusals():
        async for output in engine.beam_search(prompt, request_id, params):
            if output.finished:
                text, tokens = prompt.get("prompt") or "", list(output.prompt_token_ids)
                return [
                    _beam(each, text + each.text, tokens + list(each.token_ids), each.cumulative_logprob)
                    for each in output.outputs
                ]
    raise RuntimeError("the beam search {} ended without an answer".format(request_id))


def _beam(found: Any, text: str, tokens: Any, logprob: Any) -> Json:
    """As the controller's ``Beam``: with the prompt in front."""
    return {
        "text": text,
        "token_ids": list(tokens),
        "cumulative_logprob": float(logprob),
        "finish_reason": found.finish_reason,
        "stop_reason": found.stop_reason,
    }
