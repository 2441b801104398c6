"""The byte-level BPE tokenizer of the forged checkpoints, with the special tokens that vLLM's
models and parsers need, and the chat template."""

from __future__ import annotations

from typing import Any

from ...target_site.vllm_regress_target.script import END, START
from ...target_site.vllm_regress_target.vocabularies import byte_letters
from .shapes import Tokenizer, json_bytes, padded_size

SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
# Added after the special tokens, in the padding of the vocabulary, so that the ids of texts and the
# shapes of weights do not depend on them. The first two enclose scripts. vLLM's tool and reasoning
# parsers look for the others; they appear in decoded text, as in upstream's tokenizers.
MARKERS = (
    START,
    END,
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<tool_calls>",
    "</tool_calls>",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "<\uff5ctool\u2581calls\u2581begin\uff5c>",
    "<\uff5ctool\u2581calls\u2581end\uff5c>",
    "<\uff5ctool\u2581call\u2581begin\uff5c>",
    "<\uff5ctool\u2581call\u2581end\uff5c>",
    "<\uff5ctool\u2581sep\uff5c>",
)
# Tokens of several characters, which show faults at token level. Each is merged from the left, one
# character at a time. Qwen2's split never encodes some of them (": ", 12, 123), but models generate
# such tokens, and so can this one.
WORDS = (
    '":',
    '": "',
    '", "',
    '{"',
    '"}',
    '"]',
    "},",
    ' "',
    '":{"',
    '":["',
    " {",
    " [",
    "true",
    "false",
    "null",
    "00",
    "10",
    "12",
    "123",
    " the",
    "ing",
    "and",
    "  ",
    "\n\n",
)
# From the tokenizer of the Qwen2 releases. transformers 5 always uses these two, whatever
# tokenizer.json has, so it must have the same.
_NORMALIZER = "NFC"
_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def added_tokens() -> dict[str, int]:
    """Return the ids of the special tokens and markers, which follow those of the vocabulary."""
    first = len(vocabulary()[0])
    return {content: first + number for number, content in enumerate((*SPECIALS, *MARKERS))}


def vocabulary() -> tuple[dict[str, int], list[str]]:
    """Return byte-level tokens and merges, in the printable alphabet of GPT-2's tokenizer."""
    alphabet = byte_letters()
    vocabulary = {alphabet[byte]: byte for byte in range(256)}
    merges: list[str] = []
    for word in WORDS:
        spelled = [alphabet[byte] for byte in word.encode()]
        for end in range(2, len(spelled) + 1):
            left, right = "".join(spelled[: end - 1]), spelled[end - 1]
            if left + right not in vocabulary:
                vocabulary[left + right] = len(vocabulary)
                merges.append(f"{left} {right}")
    return vocabulary, merges


def tokenizer_json(
    vocabulary: dict[str, int], merges: list[str], ids: dict[str, int]
) -> dict[str, Any]:
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    split = {"type": "Split", "pattern": {"Regex": _SPLIT}, "behavior": "Isolated", "invert": False}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": vocabulary,
        "merges": merges,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, **_flags(content)} for content, number in ids.items()],
        "normalizer": {"type": _NORMALIZER},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": model,
    }


def byte_level(*, vision: bool = False) -> Tokenizer:
    """Return the tokenizer of Qwen's models."""
    words, merges = vocabulary()
    ids = added_tokens()
    documents = {
        "tokenizer.json": tokenizer_json(words, merges, ids),
        "tokenizer_config.json": tokenizer_config(ids, vision=vision),
        "vocab.json": words,
    }
    files = {name: json_bytes(content) for name, content in documents.items()}
    files["merges.txt"] = ("#version: 0.2\n" + "\n".join(merges) + "\n").encode()
    return Tokenizer(
        ids,
        padded_size(len(words) + len(ids)),
        files,
        "<|endoftext|>",
        "<|im_end|>",
        "<|endoftext|>",
    )


def tokenizer_config(ids: dict[str, int], *, vision: bool) -> dict[str, Any]:
    return {
        # The processor of the vision model requires this class; the neutral one loads in
        # transformers 4 and 5.
        "tokenizer_class": "Qwen2Tokenizer" if vision else "PreTrainedTokenizerFast",
        "added_tokens_decoder": {str(number): _flags(content) for content, number in ids.items()},
        "additional_special_tokens": [*SPECIALS[1:], START, END],
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
        **({"processor_class": "Qwen2_5_VLProcessor"} if vision else {}),
    }


def _flags(content: str) -> dict[str, Any]:
    return added_token(content, special=content in (*SPECIALS, START, END))


def added_token(content: str, *, special: bool = True) -> dict[str, Any]:
    """Return an entry of ``added_tokens``, without its id."""
    return {
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }


CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] in ('image', 'image_url') %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] in ('video', 'video_url') %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
