"""Llama checkpoints for other tokenizers. transformers 5 always uses Qwen2's own tokenizer for a
Qwen2 model, whatever the checkpoint names."""

from __future__ import annotations

from typing import Any

from ..shapes import Shape, Tokenizer, Weights
from .qwen import text_config, text_weights

_QWEN = ("attention_dropout", "max_window_layers", "sliding_window", "use_sliding_window")


def config(tokenizer: Tokenizer, shape: Shape) -> dict[str, Any]:
    shared = {
        name: value for name, value in text_config(tokenizer, shape).items() if name not in _QWEN
    }
    return {
        **shared,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "head_dim": shape.head,
    }


def weights(vocabulary_size: int, s: Shape) -> Weights:
    """Yield the weights of Qwen2 without its biases."""
    return (
        (name, shape)
        for name, shape in text_weights(vocabulary_size, s)
        if not name.endswith(".bias")
    )
