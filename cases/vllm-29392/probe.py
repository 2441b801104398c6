"""Describe a new request as the scheduler's dump does. Runs in the target interpreter."""

import dataclasses

from vllm_regress_target import Unsupported


def described(embeddings):
    import torch
    from vllm import SamplingParams

    try:
        from vllm.v1.core.sched.output import NewRequestData
    except ImportError:
        raise Unsupported("requests with prompt embeddings", lacks="module vllm.v1.core.sched.output") from None
    values = {
        "req_id": "1",
        "prompt_token_ids": None if embeddings else [1, 2],
        "sampling_params": SamplingParams(),
        "block_ids": ([1],),
        "num_computed_tokens": 0,
        "prompt_embeds": torch.zeros(2, 8) if embeddings else None,
    }
    fields = dataclasses.fields(NewRequestData)
    if "prompt_embeds" not in [field.name for field in fields]:
        raise Unsupported("requests with prompt embeddings", lacks="NewRequestData.prompt_embeds")
    missing = [
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    request = NewRequestData(**{**dict.fromkeys(missing), **values})
    return repr(request)
