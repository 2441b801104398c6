"""Put the engine to sleep between two identical requests. Runs in the target interpreter."""


async def cached_tokens(engine, prompt, sleeps):
    """Return how many prompt tokens of the second request came from the prefix cache."""
    await _ask(engine, prompt, "{}-first".format(sleeps))
    if sleeps:
        await engine.sleep(level=1)
        await engine.wake_up()
    return await _ask(engine, prompt, "{}-second".format(sleeps))


async def _ask(engine, prompt, request_id):
    from vllm import SamplingParams

    async for result in engine.generate(prompt, SamplingParams(max_tokens=2, ignore_eos=True), request_id):
        last = result
    return last.num_cached_tokens
