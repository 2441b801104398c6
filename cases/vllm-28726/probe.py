"""Count requests that live on without a reference. Runs in the target interpreter."""

import gc
import inspect
import weakref

BLOCK_SIZE = 16


def kept(requests, caching):
    from vllm import SamplingParams
    from vllm.v1.request import Request

    options = {
        "prompt_token_ids": list(range(2 * BLOCK_SIZE)),
        "sampling_params": SamplingParams(max_tokens=1),
        "pooling_params": None,
        "eos_token_id": 0,
        "arrival_time": 0.0,
        "block_hasher": _hasher() if caching else None,
    }
    known = inspect.signature(Request).parameters
    options = {name: value for name, value in options.items() if name in known}
    gc.collect()
    gc.disable()
    try:
        references, hashes = [], 0
        for number in range(requests):
            request = Request(request_id=str(number), **options)
            hashes += len(request.block_hashes)
            references.append(weakref.ref(request))
        del request
        return {"kept": sum(reference() is not None for reference in references), "hashes": hashes}
    finally:
        gc.enable()


def _hasher():
    from vllm.v1.core import kv_cache_utils

    try:
        from vllm.utils.hashing import sha256
    except ImportError:
        from vllm.utils import sha256
    kv_cache_utils.init_none_hash(sha256)
    return kv_cache_utils.get_request_block_hasher(BLOCK_SIZE, sha256)
