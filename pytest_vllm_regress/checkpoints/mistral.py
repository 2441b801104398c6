"""Mistral's own tokenizer, tekken.json, as the package mistral_common reads it: for engines with ``tokenizer_mode="mistral"``.

Control tokens stand first, behind them the vocabulary of the other text models in its order, so a script's token number n is number n of that
vocabulary here, too. No text becomes a control token; the two that hold scripts are words of the vocabulary, which the pattern never cuts.
"""

from __future__ import annotations

import base64
from typing import Any

from ..target_site.vllm_regress_target.script import END, START
from ..target_site.vllm_regress_target.vocabularies import TEKKEN, letters
from . import llama
from .shapes import Shape, Words, padded, written
from .tokenizers import vocabulary

# Numbered as in every tokenizer up to version 7, whatever a file says; mistral_common before 1.6 reads none from a file.
CONTROL = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]"),
    *("[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
_VERSION = "v7"  # the newest that mistral_common 1.5 knows, which vLLM 0.7 asks for
_SCRIPT = r"<\|(?:end_)?script\|>"
_SPLIT = (
    _SCRIPT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    rf"| ?(?:(?!{_SCRIPT})[^\s\p{{L}}\p{{N}}])+[\r\n/]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tekken() -> Words:
    """The tokenizer. Control tokens fill up what the model's vocabulary has more, so that every token which a model may say has a text."""
    listed = words()
    size = padded(len(CONTROL) + 1 + len(listed))
    controls = size - len(listed)
    ids = {text: number for number, text in enumerate(CONTROL)}
    ids |= {text: controls + listed.index(text.encode()) for text in (START, END)}
    return Words(ids, size, {TEKKEN: written(_document(listed, controls))}, "<s>", "</s>", "<pad>")


def words() -> list[bytes]:
    """What is no control token, in its order."""
    bytes_of = {letter: byte for byte, letter in letters().items()}
    listed = [bytes(map(bytes_of.__getitem__, text)) for text in vocabulary()[0]]
    return [*listed, START.encode(), END.encode()]


def config(words: Words, shape: Shape) -> dict[str, Any]:
    plain = llama.config(words, shape)
    del plain["attention_bias"], plain["mlp_bias"]
    return {**plain, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None}


def _document(listed: list[bytes], controls: int) -> dict[str, Any]:
    return {
        "config": {
            "pattern": _SPLIT,
            "num_vocab_tokens": len(listed),
            "default_vocab_size": controls + len(listed),
            "default_num_special_tokens": controls,
            "version": _VERSION,
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": _text(word)}
            for rank, word in enumerate(listed)
        ],
        "special_tokens": [{"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(CONTROL)],
        "type": "Tekken",
    }


def _text(word: bytes) -> str | None:
    try:
        return word.decode()
    except UnicodeDecodeError:
        return None
