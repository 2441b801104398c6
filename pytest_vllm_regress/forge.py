"""The checkpoint forge: small, valid Hugging Face checkpoints with seeded weights, written without downloads and without transformers.

The text model is a Qwen2, the vision model a Qwen2.5-VL, in the file layout of the original releases.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .errors import UsageError

KINDS = ("text", "vision")
_ARCHITECTURES: Mapping[str, str] = MappingProxyType({"text": "Qwen2ForCausalLM", "vision": "Qwen2_5_VLForConditionalGeneration"})
# What the target needs beside vLLM for a kind: the vision model's processor comes with it.
NEEDS: Mapping[str, str] = MappingProxyType({"vision": "torchvision"})
_FORMAT = 1  # raise it when the bytes written change

_SPECIALS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
)
# Tokens of several characters, so that faults at token level can show; each is built up from the left, one merge a character.
_WORDS = ('":', '": "', '", "', '{"', '"}', '"]', "},", " {", " [", "true", "false", "null",
          "00", "10", "12", "123", "the ", "ing", "and", "  ", "\n\n")


@dataclasses.dataclass(frozen=True)
class _Shape:
    """Sizes of the language model; head dimension 32, the least that CPU kernels take."""

    hidden: int = 128
    intermediate: int = 256
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    vision_hidden: int = 64
    vision_intermediate: int = 128
    vision_depth: int = 2
    vision_heads: int = 2


_SHAPE = _Shape()


def architecture_of(kind: str) -> str:
    """The model class vLLM and transformers know the checkpoint by."""
    _check_kind(kind)
    return _ARCHITECTURES[kind]


def ensure_checkpoint(kind: str, root: Path, *, seed: int = 0) -> Path:
    """The checkpoint of ``kind`` below ``root``; written when it is not there yet. Two processes may do so at once.

    Raises ``UsageError`` for an unknown kind and for a place that cannot be written.
    """
    _check_kind(kind)
    key = hashlib.sha256(repr((_FORMAT, kind, seed, _SHAPE, _SPECIALS, _WORDS)).encode()).hexdigest()[:12]
    place = root / f"{kind}-{key}"
    if (place / "model.safetensors").exists():
        return place
    part = None
    try:
        root.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{kind}-", dir=root))
        _write(kind, part, seed)
        with contextlib.suppress(OSError):  # another process was faster: the same bytes are there
            os.rename(part, place)
    except OSError as error:
        raise UsageError(f"the checkpoint {place} cannot be written: {error.strerror}. Give another cache by VLLM_REGRESS_CACHE") from None
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)
    return place


def _write(kind: str, place: Path, seed: int) -> None:
    vocabulary, merges = _vocabulary()
    ids = {content: len(vocabulary) + number for number, content in enumerate(_SPECIALS)}
    size = -(-(len(vocabulary) + len(ids)) // 64) * 64  # padded as real vocabularies are, and divisible between tensor-parallel ranks
    files: dict[str, Any] = {
        "config.json": _config(kind, size, ids),
        "generation_config.json": {"bos_token_id": ids["<|endoftext|>"], "eos_token_id": [ids["<|im_end|>"]], "pad_token_id": ids["<|endoftext|>"]},
        "tokenizer.json": _tokenizer(vocabulary, merges, ids),
        "tokenizer_config.json": _tokenizer_config(kind, ids),
        "vocab.json": vocabulary,
    }
    if kind == "vision":
        files["preprocessor_config.json"] = dict(_PREPROCESSOR)
    for name, content in files.items():
        (place / name).write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
    (place / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    _write_weights(place / "model.safetensors", dict(_weights(kind, size)), seed)


def _vocabulary() -> tuple[dict[str, int], list[str]]:
    """Byte-level tokens and merges, in the printable alphabet of GPT-2's tokenizer."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    for number, byte in enumerate(b for b in range(256) if b not in letters):
        letters[byte] = chr(256 + number)
    vocabulary = {letters[byte]: byte for byte in range(256)}
    merges: list[str] = []
    for word in _WORDS:
        spelled = [letters[byte] for byte in word.encode()]
        for end in range(2, len(spelled) + 1):
            left, right = "".join(spelled[: end - 1]), spelled[end - 1]
            if left + right not in vocabulary:
                vocabulary[left + right] = len(vocabulary)
                merges.append(f"{left} {right}")
    return vocabulary, merges


def _tokenizer(vocabulary: dict[str, int], merges: list[str], ids: dict[str, int]) -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False,
             "byte_fallback": False, "vocab": vocabulary, "merges": merges}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": content, **flags} for content, number in ids.items()],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": model,
    }


def _tokenizer_config(kind: str, ids: dict[str, int]) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        # The processor of the vision model insists on its own class; the neutral one loads under transformers 4 and 5 alike.
        "tokenizer_class": "Qwen2Tokenizer" if kind == "vision" else "PreTrainedTokenizerFast",
        "added_tokens_decoder": {str(number): {"content": content, **flags} for content, number in ids.items()},
        "additional_special_tokens": list(_SPECIALS[1:]),
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT_TEMPLATE,
        **({"processor_class": "Qwen2_5_VLProcessor"} if kind == "vision" else {}),
    }


_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] in ('image', 'image_url') %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

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


def _config(kind: str, vocabulary_size: int, ids: dict[str, int]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[kind]],
        "model_type": "qwen2" if kind == "text" else "qwen2_5_vl",
        "attention_dropout": 0.0,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "hidden_act": "silu",
        "hidden_size": _SHAPE.hidden,
        "initializer_range": 0.02,
        "intermediate_size": _SHAPE.intermediate,
        "max_position_embeddings": 4096,
        "max_window_layers": _SHAPE.layers,
        "num_attention_heads": _SHAPE.heads,
        "num_hidden_layers": _SHAPE.layers,
        "num_key_value_heads": _SHAPE.kv_heads,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": vocabulary_size,
    }
    if kind == "vision":
        config |= {
            "vision_start_token_id": ids["<|vision_start|>"],
            "vision_end_token_id": ids["<|vision_end|>"],
            "vision_token_id": ids["<|vision_pad|>"],
            "image_token_id": ids["<|image_pad|>"],
            "video_token_id": ids["<|video_pad|>"],
            "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
            "vision_config": {
                "model_type": "qwen2_5_vl",
                "depth": _SHAPE.vision_depth,
                "fullatt_block_indexes": [_SHAPE.vision_depth - 1],
                "hidden_act": "silu",
                "hidden_size": _SHAPE.vision_hidden,
                "in_chans": 3,
                "intermediate_size": _SHAPE.vision_intermediate,
                "num_heads": _SHAPE.vision_heads,
                "out_hidden_size": _SHAPE.hidden,
                "patch_size": 14,
                "spatial_merge_size": 2,
                "spatial_patch_size": 14,
                "temporal_patch_size": 2,
                "tokens_per_second": 2,
                "window_size": 112,
            },
        }
    return config


def _weights(kind: str, vocabulary_size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Tensor names and shapes, as the original releases name them."""
    s = _SHAPE
    head = s.hidden // s.heads
    yield "model.embed_tokens.weight", (vocabulary_size, s.hidden)
    for layer in range(s.layers):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (s.hidden,)
        yield at + "post_attention_layernorm.weight", (s.hidden,)
        for name, rows in (("q", s.heads * head), ("k", s.kv_heads * head), ("v", s.kv_heads * head)):
            yield f"{at}self_attn.{name}_proj.weight", (rows, s.hidden)
            yield f"{at}self_attn.{name}_proj.bias", (rows,)
        yield at + "self_attn.o_proj.weight", (s.hidden, s.heads * head)
        yield at + "mlp.gate_proj.weight", (s.intermediate, s.hidden)
        yield at + "mlp.up_proj.weight", (s.intermediate, s.hidden)
        yield at + "mlp.down_proj.weight", (s.hidden, s.intermediate)
    yield "model.norm.weight", (s.hidden,)
    yield "lm_head.weight", (vocabulary_size, s.hidden)
    if kind == "vision":
        yield from _vision_weights()


def _vision_weights() -> Iterator[tuple[str, tuple[int, ...]]]:
    s = _SHAPE
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


def _write_weights(file: Path, shapes: Mapping[str, tuple[int, ...]], seed: int) -> None:
    """Norms are one, biases small, matrices of unit gain, so that the logits of a random model differ from token to token.

    Stored as float32; loaders convert to the configuration's bfloat16.
    """
    import numpy as np
    from safetensors.numpy import save_file

    random = np.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            values = np.ones(shape) if "norm" in name or "ln_q" in name else 0.02 * random.standard_normal(shape)
        else:
            values = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        tensors[name] = values.astype(np.float32)
    save_file(tensors, file, {"format": "pt"})


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise UsageError(f"no forged model is called {kind!r}; there are {', '.join(KINDS)}. A real one is named by --vllm-model")
