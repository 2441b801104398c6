"""Continue a streaming-input session. Runs in the target interpreter."""

import asyncio


async def continue_session(engine, prompts, max_tokens):
    """Send ``prompts`` one after another as the inputs of one session, and return how many times the session answered."""
    from vllm import SamplingParams
    from vllm_regress_target import Unsupported

    try:
        from vllm.engine.protocol import StreamingInput
    except ImportError:
        raise Unsupported("sessions of streamed input", since="0.15") from None
    turns = asyncio.Queue()
    turns.put_nowait(None)

    async def inputs():
        for prompt in prompts:
            await turns.get()
            yield StreamingInput(prompt, SamplingParams(max_tokens=max_tokens))

    reasons = []
    async for result in engine.generate(inputs(), SamplingParams(max_tokens=max_tokens), "session"):
        output = result.outputs[0]
        if output.finish_reason is not None:
            reasons.append(output.finish_reason)
            turns.put_nowait(None)
    return reasons
