"""Resume a sleeping engine without waking it up. Runs in the target interpreter."""

import asyncio

STEPS = 50  # far more than the request takes


async def tokens_after_resume(engine):
    """Return the tokens that a request got while the engine slept, before and after it was resumed, and when it had woken up."""
    await engine.sleep(level=1)
    got = []
    asked = asyncio.ensure_future(_ask(engine, got))
    await asyncio.sleep(0)
    before, _ = await _look(engine, got)
    await engine.resume_generation()
    early, is_asleep = await _look(engine, got)
    await engine.wake_up()
    await asked
    return {"before": before, "early": early, "is_asleep": is_asleep, "tokens": len(got)}


async def _look(engine, got):
    """Return how many tokens there are once the engine core has had time for the request, and whether the engine sleeps."""
    for _ in range(STEPS):  # the core answers each one between two steps
        is_asleep = await engine.is_sleeping()
    return len(got), is_asleep


async def _ask(engine, got):
    from vllm import SamplingParams

    async for result in engine.generate("Hello", SamplingParams(max_tokens=4, ignore_eos=True), "early"):
        got[:] = result.outputs[0].token_ids
