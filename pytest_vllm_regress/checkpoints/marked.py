"""Tokenizers without a model, one for each set of markers: what parsers of tool calls and of reasoning need of a checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from ..target_site.vllm_regress_target.script import END, START
from . import qwen
from .forge import publish
from .shapes import SHAPES, Tokenizer, json_bytes, padded_size
from .tokenizers import SPECIALS, tokenizer_config, tokenizer_json, vocabulary


def ensure_tokenizer(markers: Sequence[str], root: Path) -> Path:
    """Return the folder of a tokenizer whose ``markers`` are single tokens. It is written below ``root`` if it is missing.

    Its other tokens are those of the forged text model. Texts have equal ids in every release. Raises ``UsageError`` if it cannot be written.
    """
    words, merges = vocabulary()
    contents = dict.fromkeys((*SPECIALS, START, END, *markers))
    ids = {content: len(words) + number for number, content in enumerate(contents)}
    tokenizer = Tokenizer(ids, padded_size(len(words) + len(ids)), {}, "<|endoftext|>", "<|im_end|>", "<|endoftext|>")
    files = {
        "tokenizer.json": json_bytes(tokenizer_json(words, merges, ids)),
        "tokenizer_config.json": json_bytes(tokenizer_config(ids, vision=False)),
        "config.json": json_bytes(qwen.text_config(tokenizer, SHAPES[32])),
    }
    folder = root.absolute() / f"tokenizer-{hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:12]}"
    if all((folder / name).is_file() for name in files):
        return folder
    return publish(folder, files)
