"""The checkpoint forge: small, valid Hugging Face checkpoints with seeded weights, written without downloads and without transformers.

The text model is a Qwen2, the vision model a Qwen2.5-VL, in the file layout of the original releases. The same text becomes the same token
ids, and the same seed the same weights, whatever version of transformers reads them and whatever version of numpy drew them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..errors import UsageError
from ..util.documents import load_json
from ..util.files import private_folder
from .tokenizers import CHAT_TEMPLATE, added_tokens, tokenizer, tokenizer_config, vocabulary

MAX_CONFIG = 4 * 1024 * 1024

KINDS = ("text", "vision")
_ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {"text": "Qwen2ForCausalLM", "vision": "Qwen2_5_VLForConditionalGeneration"}
)
# What the target needs beside vLLM for a kind: the vision model's processor comes with it.
NEEDS: Mapping[str, str] = MappingProxyType({"vision": "torchvision"})
_WEIGHTS = "model.safetensors"
_RECIPE = 2  # of the weights' values: raise it when they change. Everything else that is written is hashed as it is


@dataclasses.dataclass(frozen=True)
class _Shape:
    """Sizes of a forged model; by default heads of 32, the least that CPU kernels take."""

    hidden: int = 128
    intermediate: int = 256
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    vision_hidden: int = 64
    vision_intermediate: int = 128
    vision_depth: int = 2
    vision_heads: int = 2

    @property
    def head(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads


_SHAPES: Mapping[int, _Shape] = MappingProxyType({32: _Shape(), 64: _Shape(hidden=256, intermediate=512)})
"""By the width of a head. Some attention backends of CUDA take 64 or more only, FlashInfer for one."""


def architecture_of(kind: str) -> str:
    """The model class vLLM and transformers know the checkpoint by."""
    _check_kind(kind)
    return _ARCHITECTURES[kind]


def architectures_of(model: str) -> tuple[str, ...]:
    """The model classes that the checkpoint at the path ``model`` names; none where it is no path, or names none."""
    try:
        named = load_json(Path(model, "config.json"), MAX_CONFIG)["architectures"]
    except (UsageError, LookupError, TypeError):
        return ()
    return tuple(filter(lambda each: isinstance(each, str), named)) if isinstance(named, list) else ()


def ensure_checkpoint(kind: str, root: Path, *, seed: int = 0, head: int = 32) -> Path:
    """The absolute path of the checkpoint of ``kind`` below ``root``; written when it is not there yet, or has lost files.

    Its name carries a hash of everything written, so a changed forge never takes an old checkpoint for its own. Several processes may ask
    at once. ``seed`` (zero or more) chooses the weights, ``head`` (32 or 64) is the width
    of an attention head. About 2 MB and a tenth of a second the first time.

    Raises ``UsageError`` for an unknown kind, a negative seed, and a place that cannot be written.
    """
    _check_kind(kind)
    if seed < 0:
        raise UsageError(f"the seed of a forged model is zero or more, not {seed}")
    shape = _SHAPES[head]
    size, files = _files(kind, shape)
    shapes = dict(_weights(kind, size, shape))
    key = hashlib.sha256(repr((_RECIPE, seed, sorted(files.items()), sorted(shapes.items()))).encode()).hexdigest()[:12]
    root = root.absolute()
    place = root / f"{kind}-{key}"
    if _is_whole(place, files, shapes):
        return place
    return publish(place, {**files, _WEIGHTS: weight_file(shapes, seed)})


def publish(place: Path, files: Mapping[str, bytes]) -> Path:
    """Write a folder of these files in one step, or mend what it has lost; others may do the same at the same time. Raises ``UsageError``."""
    part = place.with_name(f".{place.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        private_folder(place.parent)
        part.mkdir()
        for name, content in files.items():
            (part / name).write_bytes(content)
        _move(part, place)
    except OSError as error:
        raise UsageError(
            f"the checkpoint {place} cannot be written: {error.strerror or error}. Give another cache by VLLM_REGRESS_CACHE"
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return place


def _is_whole(place: Path, files: Mapping[str, bytes], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether every file is there in its full length. Cache cleaners and full disks leave less."""
    try:
        with (place / _WEIGHTS).open("rb") as stored:
            header = int.from_bytes(stored.read(8), "little")
            expected = 8 + header + 4 * sum(math.prod(shape) for shape in shapes.values())
            if os.fstat(stored.fileno()).st_size != expected:
                return False
        return all((place / name).stat().st_size == len(content) for name, content in files.items())
    except OSError:
        return False


def _move(part: Path, place: Path) -> None:
    try:
        os.rename(part, place)
    except OSError:
        if not place.is_dir():
            raise
        # Another process was faster, or the place has lost files. The same bytes go in, each file in one step, so readers notice nothing.
        for file in part.iterdir():
            os.replace(file, place / file.name)


def _files(kind: str, shape: _Shape) -> tuple[int, dict[str, bytes]]:
    """The size of the vocabulary, and the content of every file but the weights, by name."""
    words, merges = vocabulary()
    ids = added_tokens()
    size = (
        -(-(len(words) + len(ids)) // 64) * 64
    )  # padded as real vocabularies are, and divisible between tensor-parallel ranks
    documents: dict[str, Any] = {
        "config.json": _config(kind, size, ids, shape),
        "generation_config.json": {
            "bos_token_id": ids["<|endoftext|>"],
            "eos_token_id": [ids["<|im_end|>"]],
            "pad_token_id": ids["<|endoftext|>"],
        },
        "tokenizer.json": tokenizer(words, merges, ids),
        "tokenizer_config.json": tokenizer_config(kind, ids),
        "vocab.json": words,
    }
    if kind == "vision":
        documents["preprocessor_config.json"] = dict(_PREPROCESSOR)
        documents["chat_template.json"] = {
            "chat_template": CHAT_TEMPLATE
        }  # where processors before transformers 5 look for it
    files = {name: json.dumps(content, ensure_ascii=False, indent=1).encode() for name, content in documents.items()}
    files["merges.txt"] = ("#version: 0.2\n" + "\n".join(merges) + "\n").encode()
    return size, files


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


def _config(kind: str, vocabulary_size: int, ids: dict[str, int], shape: _Shape) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[kind]],
        "model_type": "qwen2" if kind == "text" else "qwen2_5_vl",
        "attention_dropout": 0.0,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
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
        "vocab_size": vocabulary_size,
    }
    if kind == "vision":
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


def _weights(kind: str, vocabulary_size: int, s: _Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Tensor names and shapes, as the original releases name them."""
    head = s.head
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
        yield from _vision_weights(s)


def _vision_weights(s: _Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
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


def weight_file(shapes: Mapping[str, tuple[int, ...]], seed: int) -> bytes:
    """The weights as a safetensors file: norms are one, biases small, matrices of unit gain, so that the logits of a random model differ from
    token to token.

    Uniform values made from the generator's raw bits: numpy promises those for good, its distributions it may change. Stored as float32;
    loaders convert to the configuration's bfloat16.
    """
    import numpy as np
    from safetensors.numpy import save

    bits = np.random.PCG64(seed)
    tensors = {}
    for name, shape in shapes.items():
        if len(shape) == 1 and ("norm" in name or "ln_q" in name):
            tensors[name] = np.ones(shape, np.float32)
            continue
        deviation = 0.02 if len(shape) == 1 else 1 / math.sqrt(math.prod(shape[1:]))
        raw = np.asarray(bits.random_raw(math.prod(shape)), np.uint64) >> np.uint64(
            40
        )  # 24 bits: a float32 holds them exactly
        unit = raw.astype(np.float32) / np.float32(2**23) - np.float32(1)  # from -1 to 1: deviation 1 / sqrt(3)
        tensors[name] = (unit * np.float32(deviation * math.sqrt(3))).reshape(shape)
    return save(tensors, {"format": "pt"})


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise UsageError(
            f"no forged model is called {kind!r}; there are {', '.join(KINDS)}. A real one is named by --vllm-model"
        )
