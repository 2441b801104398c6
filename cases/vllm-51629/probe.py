"""Abort running requests and count those that the engine still holds. Runs in the target interpreter."""

import asyncio

ABORT_TIMEOUT_S = 3


async def held_after_aborts(engine, n, rounds, by_id):
    from vllm import SamplingParams

    params = SamplingParams(n=n, max_tokens=400, ignore_eos=True)
    parents = 0
    for number in range(rounds):
        name = "aborted-{}".format(number)
        started = asyncio.Event()
        reader = asyncio.ensure_future(_read(engine.generate("Hello", params, name), started))
        await started.wait()
        parents = max(parents, len(engine.output_processor.parent_requests))
        if by_id:
            await engine.abort(name)
            # vLLM ends the stream; releases before about 0.9 did not.
            await asyncio.wait({reader}, timeout=ABORT_TIMEOUT_S)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
    return {"held": len(engine.output_processor.parent_requests), "parents": parents}


async def _read(results, started):
    async for _ in results:
        started.set()
