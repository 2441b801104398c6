"""Read an adapter's configuration. Runs in the target interpreter."""

import inspect


def refusal(rank):
    from vllm.config import LoRAConfig
    from vllm.lora.peft_helper import PEFTHelper

    config = {"r": rank, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none"}
    options = {"max_lora_rank": 16, "max_cpu_loras": 1, "max_loras": 1}
    known = inspect.signature(LoRAConfig).parameters
    try:
        helper = PEFTHelper.from_dict(config)
        helper.validate_legal(LoRAConfig(**{name: value for name, value in options.items() if name in known}))
    except (ValueError, ArithmeticError) as error:
        return "{}: {}".format(type(error).__name__, error)
    return None
