"""Use the id of a request again. Runs in the target interpreter."""

import asyncio


async def take_over_id(engine, prompt, stop, second_id):
    """Send a request that ends at ``stop`` beside a long one, and as soon as it has ended another as ``second_id``, which is long, too.

    Return the first one's reason to end, and how many tokens the second has got when a third, sent after it, is finished.
    """
    from vllm import SamplingParams

    long = SamplingParams(max_tokens=200, ignore_eos=True)
    seen = {"reason": None, "again": 0}
    ended = asyncio.Event()

    async def use_id_twice():
        async for result in engine.generate(prompt, SamplingParams(max_tokens=200, stop=[stop]), "same"):
            if result.finished:
                break
        seen["reason"] = result.outputs[0].stop_reason
        ended.set()
        async for again in engine.generate("again", long, second_id):
            seen["again"] = len(again.outputs[0].token_ids)

    same = asyncio.ensure_future(use_id_twice())
    beside = asyncio.ensure_future(_count(engine, "beside", 400))
    await ended.wait()
    await beside
    seen["own"] = await _count(engine, "own", 400)
    same.cancel()
    await asyncio.gather(same, return_exceptions=True)
    return seen


async def _count(engine, prompt, tokens):
    from vllm import SamplingParams

    async for result in engine.generate(prompt, SamplingParams(max_tokens=tokens, ignore_eos=True), prompt):
        last = result
    return len(last.outputs[0].token_ids)
