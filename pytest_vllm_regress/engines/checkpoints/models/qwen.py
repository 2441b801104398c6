"""Qwen checkpoints in the file layout of the original releases: text (Qwen2), its draft model,
vision (Qwen2.5-VL), and a classifier."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ..shapes import Shape, Tokenizer, Weights
from ..tokenizers import CHAT_TEMPLATE


def text_config(tokenizer: Tokenizer, shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "attention_dropout": 0.0,
        "bos_token_id": tokenizer.ids[tokenizer.begin],
        "eos_token_id": tokenizer.ids[tokenizer.end],
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": 4096,
        "max_window_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": tokenizer.size,
    }


def vision_config(tokenizer: Tokenizer, shape: Shape) -> dict[str, Any]:
    ids = tokenizer.ids
    config = text_config(tokenizer, shape)
    config |= {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl"}
    config |= {
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "vision_token_id": ids["<|vision_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "rope_scaling": {
            "type": "mrope",
            "mrope_section": [shape.head // 8, shape.head * 3 // 16, shape.head * 3 // 16],
        },
        "vision_config": {
            "model_type": "qwen2_5_vl",
            "depth": shape.vision_depth,
            "fullatt_block_indexes": [shape.vision_depth - 1],
            "hidden_act": "silu",
            "hidden_size": shape.vision_hidden,
            "in_chans": 3,
            "intermediate_size": shape.vision_intermediate,
            "num_heads": shape.vision_heads,
            "out_hidden_size": shape.hidden,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "spatial_patch_size": 14,
            "temporal_patch_size": 2,
            "tokens_per_second": 2,
            "window_size": 112,
        },
    }
    return config


_PREPROCESSOR: Mapping[str, Any] = MappingProxyType(
    {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
        "min_pixels": 56 * 56,
        "max_pixels": 112 * 112,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }
)


def generation(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return generation_config.json, which says how a text ends."""
    ids = {
        name: tokenizer.ids[token]
        for name, token in (
            ("bos", tokenizer.begin),
            ("eos", tokenizer.end),
            ("pad", tokenizer.pad),
        )
    }
    return {
        "generation_config.json": {
            "bos_token_id": ids["bos"],
            "eos_token_id": [ids["eos"]],
            "pad_token_id": ids["pad"],
        }
    }


def vision_files(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the files of the image processor, and the chat template in the file where processors
    before transformers 5 look for it."""
    return {
        **generation(tokenizer),
        "preprocessor_config.json": dict(_PREPROCESSOR),
        "chat_template.json": {"chat_template": CHAT_TEMPLATE},
    }


def trunk(vocabulary_size: int, s: Shape) -> Weights:
    """Yield the weights of the decoder without the head."""
    head = s.head
    yield "model.embed_tokens.weight", (vocabulary_size, s.hidden)
    for layer in range(s.layers):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (s.hidden,)
        yield at + "post_attention_layernorm.weight", (s.hidden,)
        for name, rows in (
            ("q", s.heads * head),
            ("k", s.kv_heads * head),
            ("v", s.kv_heads * head),
        ):
            yield f"{at}self_attn.{name}_proj.weight", (rows, s.hidden)
            yield f"{at}self_attn.{name}_proj.bias", (rows,)
        yield at + "self_attn.o_proj.weight", (s.hidden, s.heads * head)
        yield at + "mlp.gate_proj.weight", (s.intermediate, s.hidden)
        yield at + "mlp.up_proj.weight", (s.intermediate, s.hidden)
        yield at + "mlp.down_proj.weight", (s.hidden, s.intermediate)
    yield "model.norm.weight", (s.hidden,)


LABELS = ("negative", "neutral", "positive")
"""The classes of the classifier."""


def classifier_config(tokenizer: Tokenizer, shape: Shape) -> dict[str, Any]:
    return {
        **text_config(tokenizer, shape),
        "architectures": ["Qwen2ForSequenceClassification"],
        "pad_token_id": tokenizer.ids[tokenizer.pad],
        "id2label": {str(number): label for number, label in enumerate(LABELS)},
        "label2id": {label: number for number, label in enumerate(LABELS)},
    }


def classifier_weights(vocabulary_size: int, s: Shape) -> Weights:
    yield from trunk(vocabulary_size, s)
    yield "score.weight", (len(LABELS), s.hidden)


def text_weights(vocabulary_size: int, s: Shape) -> Weights:
    yield from trunk(vocabulary_size, s)
    yield "lm_head.weight", (vocabulary_size, s.hidden)


def draft_config(tokenizer: Tokenizer, shape: Shape) -> dict[str, Any]:
    """Return the configuration of the text model's first layer, which often, but not always,
    predicts the same tokens."""
    return text_config(tokenizer, dataclasses.replace(shape, layers=1))


def in_draft(name: str) -> bool:
    """Return whether the draft model has this weight of the text model."""
    return not name.startswith("model.layers.") or name.startswith("model.layers.0.")


def vision_weights(vocabulary_size: int, s: Shape) -> Weights:
    yield from text_weights(vocabulary_size, s)
    wide = s.vision_hidden
    yield "visual.patch_embed.proj.weight", (wide, 3, 2, 14, 14)
    for block in range(s.vision_depth):
        at = f"visual.blocks.{block}."
        for name in ("norm1", "norm2"):
            yield f"{at}{name}.weight", (wide,)
        for name, rows, columns in (
            ("attn.qkv", 3 * wide, wide),
            ("attn.proj", wide, wide),
            ("mlp.gate_proj", s.vision_intermediate, wide),
            ("mlp.up_proj", s.vision_intermediate, wide),
            ("mlp.down_proj", wide, s.vision_intermediate),
        ):
            yield f"{at}{name}.weight", (rows, columns)
            yield f"{at}{name}.bias", (rows,)
    yield "visual.merger.ln_q.weight", (wide,)
    for number, rows in ((0, 4 * wide), (2, s.hidden)):
        yield f"visual.merger.mlp.{number}.weight", (rows, 4 * wide)
        yield f"visual.merger.mlp.{number}.bias", (rows,)
