"""Mistral's own tokenizer, tekken.json, which the package mistral_common reads, for engines with
``tokenizer_mode="mistral"``.

Control tokens come first. The vocabulary of the other text models follows in the same order, so
token n of a script is number n of that vocabulary here, too. No text is encoded as a control token.
The two tokens around scripts are therefore part of the vocabulary; the pattern never splits them.
"""

from __future__ import annotations

import base64
from typing import Any

from ....target_site.vllm_regress_target.script import END, START
from ....target_site.vllm_regress_target.vocabularies import TEKKEN, byte_letters
from ..shapes import Shape, Tokenizer, json_bytes, padded_size
from ..tokenizers import vocabulary
from . import llama

# Numbered as in every tokenizer up to version 7. mistral_common before 1.6 does not read control
# tokens from the file.
CONTROL = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *(
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
        "[TOOL_CALLS]",
        "[IMG]",
        "<pad>",
        "[IMG_BREAK]",
        "[IMG_END]",
    ),
    *("[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
_VERSION = "v7"  # the newest version that mistral_common 1.5 reads, which vLLM 0.7 requires
_SCRIPT = r"<\|(?:end_)?script\|>"
_SPLIT = (
    _SCRIPT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    rf"| ?(?:(?!{_SCRIPT})[^\s\p{{L}}\p{{N}}])+[\r\n/]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tekken() -> Tokenizer:
    """Return the tokenizer. Additional control tokens fill the padding of the vocabulary, so that
    every token which a model may generate has a
    text."""
    listed = vocabulary_bytes()
    size = padded_size(len(CONTROL) + 1 + len(listed))
    controls = size - len(listed)
    ids = {text: number for number, text in enumerate(CONTROL)}
    ids |= {text: controls + listed.index(text.encode()) for text in (START, END)}
    return Tokenizer(
        ids, size, {TEKKEN: json_bytes(_document(listed, controls))}, "<s>", "</s>", "<pad>"
    )


def vocabulary_bytes() -> list[bytes]:
    """Return the tokens that are not control tokens, in order."""
    bytes_of = {letter: byte for byte, letter in byte_letters().items()}
    listed = [bytes(map(bytes_of.__getitem__, text)) for text in vocabulary()[0]]
    return [*listed, START.encode(), END.encode()]


def config(tokenizer: Tokenizer, shape: Shape) -> dict[str, Any]:
    plain = llama.config(tokenizer, shape)
    del plain["attention_bias"], plain["mlp_bias"]
    return {
        **plain,
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": None,
    }


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
        "special_tokens": [
            {"rank": rank, "token_str": text, "is_control": True}
            for rank, text in enumerate(CONTROL)
        ],
        "type": "Tekken",
    }


def _text(word: bytes) -> str | None:
    try:
        return word.decode()
    except UnicodeDecodeError:
        return None
