"""Asks with a request id of the caller's choice. Runs inside the target interpreter."""


async def tokens_for(engine, request_id):
    from vllm import SamplingParams

    try:
        async for result in engine.generate("Hello", SamplingParams(max_tokens=4, ignore_eos=True), request_id):
            last = result
    except (TypeError, ValueError) as refused:  # that is right, too
        return repr(refused)
    return len(last.outputs[0].token_ids)
