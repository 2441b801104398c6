"""Put the engine to sleep while it generates. Runs in the target interpreter."""

import asyncio

STEPS = 50


async def tokens_while_asleep(engine):
    """Return the tokens that a running request got before the engine slept, and while it slept, and whether it slept."""
    got = []
    asked = asyncio.ensure_future(_ask(engine, got))
    while not got:
        await asyncio.sleep(0.01)
    await engine.sleep(level=1)
    for _ in range(STEPS):  # the core answers each one between two steps; tokens from before have arrived then
        is_asleep = await engine.is_sleeping()
    before = len(got)
    for _ in range(STEPS):
        is_asleep = await engine.is_sleeping() and is_asleep
    asleep = len(got) - before
    await engine.wake_up()
    await engine.abort("running")
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    return {"is_asleep": is_asleep, "before": before, "asleep": asleep}


async def _ask(engine, got):
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=1500, ignore_eos=True)
    async for result in engine.generate("Hello", params, "running"):
        got[:] = result.outputs[0].token_ids
