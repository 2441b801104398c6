"""Abort a request whose cache is being received. Runs in the target interpreter."""

import asyncio


async def abort_while_receiving(engine, prompt):
    """Send ``prompt``, abort it once the connector receives its cache, and return the tokens that the requests before and after it got."""
    aborted = asyncio.ensure_future(_ask(engine, prompt, "aborted"))
    await asyncio.sleep(0)
    before = await _ask(engine, "before", "before")  # when it is finished, the scheduler has seen the other one
    await engine.abort("aborted")
    after = await _ask(engine, "after", "after")
    aborted.cancel()
    await asyncio.gather(aborted, return_exceptions=True)
    return [before, after]


async def _ask(engine, prompt, request_id):
    from vllm import SamplingParams

    async for result in engine.generate(prompt, SamplingParams(max_tokens=4, ignore_eos=True), request_id):
        last = result
    return len(last.outputs[0].token_ids)
