"""What a simulated layer would keep of a request, as vLLM's scheduler has to know it; nothing is allocated."""

from typing import Any

from vllm.v1 import kv_cache_interface

from .compat import SimulationGap, feed


def layer(vllm_config: Any) -> Any:
    """The specification of a layer: full attention, or a state in its place."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    if model.is_attention_free:
        return _state(model, cache)
    return feed(
        kv_cache_interface.FullAttentionSpec,
        {
            "block_size": cache.block_size or 16,
            "num_kv_heads": model.get_num_kv_heads(vllm_config.parallel_config),
            "head_size": model.get_head_size(),
            "dtype": model.dtype,
            "use_mla": False,
        },
    )


def _state(model: Any, cache: Any) -> Any:
    kind = getattr(kv_cache_interface, "MambaSpec", None)
    if kind is None:
        raise SimulationGap("a model without attention in V1: this vLLM's V1 keeps no states")
    config = model.hf_config
    wide = config.intermediate_size
    known = {
        "block_size": getattr(cache, "mamba_block_size", None) or model.max_model_len,
        "shapes": ((wide, config.conv_kernel - 1), (wide, config.state_size)),
        "dtype": model.dtype,
        "dtypes": (model.dtype, model.dtype),
        "mamba_cache_mode": getattr(cache, "mamba_cache_mode", "none"),
    }
    return feed(kind, known)
