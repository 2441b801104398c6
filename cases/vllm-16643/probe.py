"""Send a request with a request id of the caller's choice. Runs in the target interpreter."""


async def tokens_for(engine, request_id):
    from vllm import SamplingParams

    try:
        async for result in engine.generate("Hello", SamplingParams(max_tokens=4, ignore_eos=True), request_id):
            last = result
    except (TypeError, ValueError) as error:  # rejecting the id is correct
        return repr(error)
    return len(last.outputs[0].token_ids)
