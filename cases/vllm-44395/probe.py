"""Send a request while only the weights are awake. Runs in the target interpreter."""

import asyncio

STEPS = 50  # far more than the request takes


async def tokens_in_partial_wake(engine):
    """Return the tokens that a request got while the KV cache was asleep, the state then, and its tokens after the complete wake-up."""
    await engine.sleep(level=1)
    await engine.wake_up(tags=["weights"])
    got = []
    asked = asyncio.ensure_future(_ask(engine, got))
    await asyncio.sleep(0)
    for _ in range(STEPS):  # the core answers each one between two steps
        is_asleep = await engine.is_sleeping()
    early = len(got)
    await engine.wake_up(tags=["kv_cache"])
    await asked
    return {"is_asleep": is_asleep, "early": early, "tokens": len(got)}


async def _ask(engine, got):
    from vllm import SamplingParams

    async for result in engine.generate("Hello", SamplingParams(max_tokens=4, ignore_eos=True), "early"):
        got[:] = result.outputs[0].token_ids
