"""A model with a state instead of attention, in the file layout of the original Mamba releases."""

from __future__ import annotations

from typing import Any

from ..shapes import Shape, Tokenizer, Weights

_STATE = 16
_RANK = 8
_KERNEL = 4


def config(tokenizer: Tokenizer, shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["MambaForCausalLM"],
        "model_type": "mamba",
        "bos_token_id": tokenizer.ids[tokenizer.begin],
        "eos_token_id": tokenizer.ids[tokenizer.end],
        "pad_token_id": tokenizer.ids[tokenizer.pad],
        "conv_kernel": _KERNEL,
        "expand": 2,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.1,
        "intermediate_size": 2 * shape.hidden,
        "layer_norm_epsilon": 1e-05,
        "max_position_embeddings": 4096,
        "num_hidden_layers": shape.layers,
        "residual_in_fp32": True,
        "state_size": _STATE,
        "tie_word_embeddings": False,
        "time_step_rank": _RANK,
        "torch_dtype": "bfloat16",
        "use_bias": False,
        "use_cache": True,
        "use_conv_bias": True,
        "vocab_size": tokenizer.size,
    }


def weights(vocabulary_size: int, s: Shape) -> Weights:
    wide = 2 * s.hidden
    yield "backbone.embeddings.weight", (vocabulary_size, s.hidden)
    for layer in range(s.layers):
        at = f"backbone.layers.{layer}."
        yield f"{at}norm.weight", (s.hidden,)
        yield f"{at}mixer.A_log", (wide, _STATE)
        yield f"{at}mixer.D", (wide,)
        yield f"{at}mixer.conv1d.weight", (wide, 1, _KERNEL)
        yield f"{at}mixer.conv1d.bias", (wide,)
        yield f"{at}mixer.in_proj.weight", (2 * wide, s.hidden)
        yield f"{at}mixer.x_proj.weight", (_RANK + 2 * _STATE, wide)
        yield f"{at}mixer.dt_proj.weight", (wide, _RANK)
        yield f"{at}mixer.dt_proj.bias", (wide,)
        yield f"{at}mixer.out_proj.weight", (s.hidden, wide)
    yield "backbone.norm_f.weight", (s.hidden,)
    yield "lm_head.weight", (vocabulary_size, s.hidden)
