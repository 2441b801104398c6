"""Checkpoints of Llama's kind, for other tokenizers: transformers 5 gives a Qwen2 its own tokenizer, whatever the checkpoint names."""

from __future__ import annotations

from typing import Any

from .qwen import text_config, text_weights
from .shapes import Shape, Weights, Words

_QWEN = ("attention_dropout", "max_window_layers", "sliding_window", "use_sliding_window")


def config(words: Words, shape: Shape) -> dict[str, Any]:
    shared = {name: value for name, value in text_config(words, shape).items() if name not in _QWEN}
    return {
        **shared,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "head_dim": shape.head,
    }


def weights(vocabulary_size: int, s: Shape) -> Weights:
    """As Qwen2's, without biases."""
    return (each for each in text_weights(vocabulary_size, s) if not each[0].endswith(".bias"))
