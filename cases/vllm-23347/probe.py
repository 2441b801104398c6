"""Send requests with different priorities, each after the previous one has started. Runs in the target interpreter."""

import asyncio


async def tokens_of(engine, name, prompts, priorities, max_tokens):
    """Return the number of tokens generated for each request."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    readers = []
    for number, (prompt, priority) in enumerate(zip(prompts, priorities)):
        started = asyncio.Event()
        results = engine.generate(prompt, params, "{}-{}".format(name, number), priority=priority)
        readers.append(asyncio.ensure_future(_read(results, started)))
        waiter = asyncio.ensure_future(started.wait())
        await asyncio.wait({waiter, readers[-1]}, return_when=asyncio.FIRST_COMPLETED)
    return await asyncio.gather(*readers)


async def _read(results, started):
    async for result in results:
        started.set()
        count = len(result.outputs[0].token_ids)
    return count
