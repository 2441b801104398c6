"""BERT checkpoints: an encoder that embeds texts, and a cross-encoder that scores pairs of texts."""

from __future__ import annotations

import string
from typing import Any

from ..shapes import Shape, Tokenizer, Weights, json_bytes, padded_size
from ..tokenizers import added_token

_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_WORDS = (
    "the",
    "cat",
    "on",
    "sat",
    "mat",
    "and",
    "##s",
    "##ing",
    "one",
    "two",
    "three",
    "what",
    "is",
    "a",
)


def wordpiece() -> Tokenizer:
    """Return BERT's tokenizer: lower case, word pieces, ``[CLS]`` and ``[SEP]`` around texts, token
    types for pairs."""
    letters = [*string.ascii_lowercase, *string.digits, *string.punctuation]
    listed = list(
        dict.fromkeys([*_SPECIALS, *letters, *(f"##{letter}" for letter in letters), *_WORDS])
    )
    vocabulary = {text: number for number, text in enumerate(listed)}
    ids = {text: vocabulary[text] for text in _SPECIALS}
    files = {
        "tokenizer.json": json_bytes(_tokenizer(vocabulary, ids)),
        "tokenizer_config.json": json_bytes(_tokenizer_config(ids)),
        "vocab.txt": "".join(f"{text}\n" for text in listed).encode(),
    }
    return Tokenizer(ids, padded_size(len(listed)), files, "[CLS]", "[SEP]", "[PAD]")


def encoder_config(tokenizer: Tokenizer, shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "attention_probs_dropout_prob": 0.0,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "pad_token_id": tokenizer.ids[tokenizer.pad],
        "position_embedding_type": "absolute",
        "torch_dtype": "bfloat16",
        "type_vocab_size": 2,
        "vocab_size": tokenizer.size,
    }


def reranker_config(tokenizer: Tokenizer, shape: Shape) -> dict[str, Any]:
    config = encoder_config(tokenizer, shape)
    return {
        **config,
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
    }


def encoder_weights(vocabulary_size: int, s: Shape, at: str = "") -> Weights:
    for name, rows in (("word", vocabulary_size), ("position", 512), ("token_type", 2)):
        yield f"{at}embeddings.{name}_embeddings.weight", (rows, s.hidden)
    yield from _norm(f"{at}embeddings", s)
    for layer in range(s.layers):
        prefix = f"{at}encoder.layer.{layer}."
        for name in ("query", "key", "value"):
            yield from _linear(f"{prefix}attention.self.{name}", s.hidden, s.hidden)
        yield from _linear(f"{prefix}attention.output.dense", s.hidden, s.hidden)
        yield from _norm(f"{prefix}attention.output", s)
        yield from _linear(f"{prefix}intermediate.dense", s.intermediate, s.hidden)
        yield from _linear(f"{prefix}output.dense", s.hidden, s.intermediate)
        yield from _norm(f"{prefix}output", s)
    yield from _linear(f"{at}pooler.dense", s.hidden, s.hidden)


def reranker_weights(vocabulary_size: int, s: Shape) -> Weights:
    yield from encoder_weights(vocabulary_size, s, "bert.")
    yield from _linear("classifier", 1, s.hidden)


def no_documents(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return no documents, because an encoder generates no text and needs no
    generation_config.json."""
    return {}


def _linear(name: str, rows: int, columns: int) -> Weights:
    yield f"{name}.weight", (rows, columns)
    yield f"{name}.bias", (rows,)


def _norm(at: str, s: Shape) -> Weights:
    yield f"{at}.LayerNorm.weight", (s.hidden,)
    yield f"{at}.LayerNorm.bias", (s.hidden,)


def _tokenizer(vocabulary: dict[str, int], ids: dict[str, int]) -> dict[str, Any]:
    def marked(text: str, kind: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": text, "type_id": kind}}

    first, second = (
        {"Sequence": {"id": letter, "type_id": kind}} for kind, letter in enumerate("AB")
    )
    single = [marked("[CLS]", 0), first, marked("[SEP]", 0)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, **added_token(text)} for text, number in ids.items()],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, second, marked("[SEP]", 1)],
            "special_tokens": {
                text: {"id": text, "ids": [ids[text]], "tokens": [text]}
                for text in ("[CLS]", "[SEP]")
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }


def _tokenizer_config(ids: dict[str, int]) -> dict[str, Any]:
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {str(number): added_token(text) for text, number in ids.items()},
        **dict(zip(names, _SPECIALS, strict=True)),
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "model_max_length": 512,
        "clean_up_tokenization_spaces": True,
    }
