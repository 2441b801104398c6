"""A Qwen2-Audio checkpoint: an audio encoder and a chat model, in the file layout of the original
release."""

from __future__ import annotations

import json
from typing import Any

from ..shapes import Shape, Tokenizer, Weights, json_bytes, padded_size
from ..tokenizers import CHAT_TEMPLATE, added_token, added_tokens, byte_level
from . import qwen, whisper

_PLACE = ("<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>")
_SECONDS = 30  # vLLM expects audio features of exactly this length
_POSITIONS = 50 * _SECONDS
_TEXT_PART = "{% elif part['type'] == 'text' %}"
_TEMPLATE = CHAT_TEMPLATE.replace(
    _TEXT_PART, "{% elif part['type'] == 'audio' %}" + "".join(_PLACE) + _TEXT_PART
)


def tokenizer() -> Tokenizer:
    """Return the tokenizer of the text models, with the tokens that mark where audio goes in a
    prompt."""
    text = byte_level()
    letters = len(json.loads(text.files["vocab.json"]))
    first = letters + len(added_tokens())
    ids = {**text.ids, **{content: first + number for number, content in enumerate(_PLACE)}}
    document, config = (
        json.loads(text.files[name]) for name in ("tokenizer.json", "tokenizer_config.json")
    )
    document["added_tokens"] += [{"id": ids[content], **added_token(content)} for content in _PLACE]
    config["added_tokens_decoder"] |= {
        str(ids[content]): added_token(content) for content in _PLACE
    }
    config["additional_special_tokens"] += _PLACE
    # The processor requires this class.
    config |= {"tokenizer_class": "Qwen2Tokenizer", "processor_class": "Qwen2AudioProcessor"}
    config["chat_template"] = _TEMPLATE
    files = {
        **text.files,
        "tokenizer.json": json_bytes(document),
        "tokenizer_config.json": json_bytes(config),
    }
    return Tokenizer(ids, padded_size(letters + len(ids)), files, text.begin, text.end, text.pad)


def config(tokenizer: Tokenizer, shape: Shape) -> dict[str, Any]:
    text = qwen.text_config(tokenizer, shape)
    return {
        "architectures": ["Qwen2AudioForConditionalGeneration"],
        "model_type": "qwen2_audio",
        "audio_config": {
            "model_type": "qwen2_audio_encoder",
            "activation_dropout": 0.0,
            "activation_function": "gelu",
            "attention_dropout": 0.0,
            "d_model": shape.hidden,
            "dropout": 0.0,
            "encoder_attention_heads": shape.heads,
            "encoder_ffn_dim": shape.intermediate,
            "encoder_layerdrop": 0.0,
            "encoder_layers": shape.layers,
            "max_source_positions": _POSITIONS,
            "num_mel_bins": whisper.MELS,
            "scale_embedding": False,
        },
        "text_config": text,
        "audio_token_index": tokenizer.ids["<|AUDIO|>"],
        "torch_dtype": "bfloat16",
        "vocab_size": tokenizer.size,
    }


def documents(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return generation_config.json, the configuration of the feature extractor, and the chat
    template in the file that processors read."""
    return {
        **qwen.generation(tokenizer),
        "preprocessor_config.json": {
            **whisper.feature_extractor(_SECONDS),
            "processor_class": "Qwen2AudioProcessor",
            "return_attention_mask": True,
        },
        "chat_template.json": {"chat_template": _TEMPLATE},
    }


def weights(vocabulary_size: int, s: Shape) -> Weights:
    yield from whisper.encoder_weights("audio_tower", _POSITIONS, s)
    yield from whisper.linear("multi_modal_projector.linear", (s.hidden, s.hidden))
    for name, shape in qwen.text_weights(vocabulary_size, s):
        yield f"language_model.{name}", shape
