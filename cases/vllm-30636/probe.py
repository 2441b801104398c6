"""Generate with an adapter and read the result. Runs in the target interpreter."""


def generate(engine, name, path):
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    params = SamplingParams(max_tokens=4, ignore_eos=True)
    (result,) = engine.generate(["Hello"], params, lora_request=LoRARequest(name, 1, path), use_tqdm=False)
    adapter = result.lora_request
    return {"tokens": len(result.outputs[0].token_ids), "adapter": adapter.lora_name if adapter is not None else None}
