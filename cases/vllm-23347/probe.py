"""Sends requests one after another, each when the one before it runs, each with a priority of its own. Runs inside the target interpreter."""

import asyncio


async def tokens_of(engine, name, prompts, priorities, max_tokens):
    """How many tokens each request brought."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    reading = []
    for number, (prompt, priority) in enumerate(zip(prompts, priorities)):
        begun = asyncio.Event()
        results = engine.generate(prompt, params, "{}-{}".format(name, number), priority=priority)
        reading.append(asyncio.ensure_future(_read(results, begun)))
        waiting = asyncio.ensure_future(begun.wait())
        await asyncio.wait({waiting, reading[-1]}, return_when=asyncio.FIRST_COMPLETED)
    return await asyncio.gather(*reading)


async def _read(results, begun):
    async for result in results:
        begun.set()
        count = len(result.outputs[0].token_ids)
    return count
