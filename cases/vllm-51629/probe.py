"""Aborts requests that have begun to answer, and counts what the engine still holds of them. Runs inside the target interpreter."""

import asyncio

PATIENT_S = 3


async def held_after_aborts(engine, n, rounds, by_id):
    from vllm import SamplingParams

    params = SamplingParams(n=n, max_tokens=400, ignore_eos=True)
    parents = 0
    for number in range(rounds):
        name = "aborted-{}".format(number)
        begun = asyncio.Event()
        reading = asyncio.ensure_future(_read(engine.generate("Hello", params, name), begun))
        await begun.wait()
        parents = max(parents, len(engine.output_processor.parent_requests))
        if by_id:
            await engine.abort(name)
            await asyncio.wait({reading}, timeout=PATIENT_S)  # vLLM tells the reader; before 0.9 or so it did not
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    return {"held": len(engine.output_processor.parent_requests), "parents": parents}


async def _read(results, begun):
    async for _ in results:
        begun.set()
