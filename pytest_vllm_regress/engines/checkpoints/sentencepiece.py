"""sentencepiece tokenizers with byte fallback: the model file, written without the library, and
tokenizers that use it.

The bytes come first, so that the token of a byte has the byte's number, as in the byte-level
vocabulary, and scripts work with both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from ...target_site.vllm_regress_target.script import END, START
from .shapes import Tokenizer, json_bytes, padded_size
from .tokenizers import CHAT_TEMPLATE, WORDS, added_token

SPACE = "\u2581"
_UNKNOWN, _BEGIN, _END = "<unk>", "<s>", "</s>"
_NORMAL, _UNK, _CONTROL, _BYTE = 1, 2, 3, 6  # SentencePiece.Type of sentencepiece_model.proto
_BPE = 2  # TrainerSpec.ModelType
_SPECIALS = ("<|im_start|>", "<|im_end|>")


def fast() -> Tokenizer:
    """Return Llama's tokenizer: tokenizer.model, and an equivalent tokenizer.json."""
    ids = _added_ids()
    return _tokenizer_of(
        ids,
        {
            "tokenizer.json": _tokenizer(ids),
            "tokenizer_config.json": _config(ids, "LlamaTokenizer"),
        },
    )


def slow() -> Tokenizer:
    """Return GPT-SW3's tokenizer, which has only the model file, because no version of transformers
    has a fast one."""
    ids = _added_ids()
    return _tokenizer_of(
        ids, {"tokenizer_config.json": _config(ids, "GPTSw3Tokenizer")}, model="spiece.model"
    )


def pieces() -> list[tuple[str, float, int]]:
    """Return text, score and type of each token, in the order of their numbers."""
    listed = [(f"<0x{byte:02X}>", 0.0, _BYTE) for byte in range(256)]
    listed += [(_UNKNOWN, 0.0, _UNK), (_BEGIN, 0.0, _CONTROL), (_END, 0.0, _CONTROL)]
    letters = [(letter, -1e4, _NORMAL) for letter in (SPACE, *map(chr, range(0x21, 0x7F)))]
    return [
        *listed,
        *letters,
        *((left + right, -float(rank), _NORMAL) for rank, (left, right) in enumerate(_merges())),
    ]


def model_file() -> bytes:
    """Return a ModelProto
    (https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto): pieces,
    trainer and normalizer."""
    listed = b"".join(
        _field(1, _field(1, text.encode()) + _number(2, score) + _number(3, kind))
        for text, score, kind in pieces()
    )
    number = {text: place for place, (text, _, _) in enumerate(pieces())}
    ends = b"".join(
        _number(40 + at, number[text]) for at, text in enumerate((_UNKNOWN, _BEGIN, _END))
    )
    trainer = _number(3, _BPE) + _number(4, len(number)) + _number(35, 1) + ends + _number(43, -1)
    normalizer = _field(1, b"identity") + _number(3, 1) + _number(4, 0) + _number(5, 1)
    return listed + _field(2, trainer) + _field(3, normalizer)


def _merges() -> Iterator[tuple[str, str]]:
    merged = set()
    for word in WORDS:
        if "\n" in word:  # encoded as bytes
            continue
        spelled = word.replace(" ", SPACE)
        for end in range(2, len(spelled) + 1):
            if spelled[:end] not in merged:
                merged.add(spelled[:end])
                yield spelled[: end - 1], spelled[end - 1]


def _added_ids() -> dict[str, int]:
    listed = [text for text, _, _ in pieces()]
    ends = {text: listed.index(text) for text in (_UNKNOWN, _BEGIN, _END)}
    return {
        **ends,
        **{text: len(listed) + place for place, text in enumerate((*_SPECIALS, START, END))},
    }


def _tokenizer_of(
    ids: dict[str, int], documents: dict[str, Any], model: str = "tokenizer.model"
) -> Tokenizer:
    files = {name: json_bytes(content) for name, content in documents.items()}
    return Tokenizer(
        ids,
        padded_size(max(ids.values()) + 1),
        {**files, model: model_file()},
        _BEGIN,
        "<|im_end|>",
        _END,
    )


def _config(ids: dict[str, int], name: str) -> dict[str, Any]:
    return {
        "tokenizer_class": name,
        "added_tokens_decoder": {str(number): added_token(text) for text, number in ids.items()},
        "bos_token": _BEGIN,
        "eos_token": "<|im_end|>",
        "unk_token": _UNKNOWN,
        "pad_token": _END,
        "add_bos_token": True,
        "add_eos_token": False,
        "legacy": False,
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _tokenizer(ids: dict[str, int]) -> dict[str, Any]:
    space = {"String": SPACE}
    begin = {"SpecialToken": {"id": _BEGIN, "type_id": 0}}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": _UNKNOWN,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": {text: number for number, (text, _, _) in enumerate(pieces())},
        "merges": [" ".join(pair) for pair in _merges()],
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, **added_token(text)} for text, number in ids.items()],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": SPACE,
            "prepend_scheme": "first",
            "split": False,
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [
                *(begin, {"Sequence": {"id": "A", "type_id": 0}}),
                *(
                    {"SpecialToken": {"id": _BEGIN, "type_id": 1}},
                    {"Sequence": {"id": "B", "type_id": 1}},
                ),
            ],
            "special_tokens": {_BEGIN: {"id": _BEGIN, "ids": [ids[_BEGIN]], "tokens": [_BEGIN]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": space, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": model,
    }


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, content: bytes) -> bytes:
    """Encode a field of bytes."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _number(number: int, value: float) -> bytes:
    """Encode a field with an int or a float32."""
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    return _varint(number << 3) + _varint(value)
